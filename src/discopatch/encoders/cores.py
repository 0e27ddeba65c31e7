"""One image per CPU core."""

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
    """The function of each item, in order, without gradients, on as many threads as torch has, each on one core.

    This is faster than dividing the small layers of one image among the cores. A single item has one thread too, so
    that the order of summation, and with it the last digits, does not depend on the number of items.
    """
    threads, function = torch.get_num_threads(), torch.inference_mode()(function)
    if threads == 1:
        return [function(item) for item in items]
    return list(one_thread_each(threads, os.getpid()).map(function, items))


@cache
def one_thread_each(threads: int, process: int) -> ThreadPoolExecutor:
    """A pool of threads of this process, in each of which torch computes on one core."""
    pool = ThreadPoolExecutor(threads, "discopatch-core", initializer=compute_alone)
    own, all_there = torch.get_num_threads(), Barrier(threads)
    list(pool.map(lambda _: all_there.wait(), range(threads)))
    torch.set_num_threads(own)  # later threads of the process start with the last value
    return pool


def compute_alone() -> None:
    """Lets torch use one core in the calling thread."""
    torch.set_num_threads(1)
    torch.get_num_threads()  # the first call in a thread adopts the last value set in any thread
