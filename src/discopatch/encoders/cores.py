"""How a CPU is kept busy: an image to each core."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

Given = TypeVar("Given")
Made = TypeVar("Made")


def map_on_cores(function: Callable[[Given], Made], items: Iterable[Given]) -> list[Made]:
    """The function of each item, without gradients and in order, as many at once as torch has threads, each on one.

    Two cores compute two small images in less time than one image after the other, whose layers they would have to
    divide: most layers are over before the second thread has begun. A single item has one thread too, so that how a
    sum is divided, and with it its last digits, does not depend on how many came along.
    """
    threads, function = torch.get_num_threads(), torch.inference_mode()(function)
    if threads == 1:
        return [function(item) for item in items]
    return list(one_thread_each(threads, os.getpid()).map(function, items))


@cache
def one_thread_each(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads, of this process alone, in which torch computes without others."""
    pool = ThreadPoolExecutor(threads, "discopatch-core", initializer=compute_alone)
    own, all_there = torch.get_num_threads(), Barrier(threads)
    list(pool.map(lambda _: all_there.wait(), range(threads)))
    torch.set_num_threads(own)  # what one thread sets is what later ones of the process begin with
    return pool


def compute_alone() -> None:
    """Lets torch compute in the calling thread without others."""
    torch.set_num_threads(1)
    torch.get_num_threads()  # when first asked, a thread takes over what was set last, in whichever thread
