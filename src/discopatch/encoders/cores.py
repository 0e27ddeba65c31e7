"""How a CPU is kept busy: an image to each core, and memory that is not given back between two layers."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

KEPT = 128 * 2**20  # bytes of freed memory that each thread keeps at most, for its next image
LARGEST = 32 * 2**20  # bytes of one tensor up to which that is so: as much as glibc takes
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # the numbers that glibc has for them
CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")

Given = TypeVar("Given")
Made = TypeVar("Made")


@cache
def keep_freed_memory() -> None:
    """Lets the process keep what a layer frees for the next one.

    By default glibc returns every large tensor to the system at once, and the pages of the next one are made and
    cleared anew: a quarter of the time of a small network. Where the user chose for themselves nothing is changed.
    """
    if sys.platform != "linux" or any(os.environ.get(name) for name in CHOSEN_BY_USER):
        return
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, KEPT)


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
    pool = ThreadPoolExecutor(threads, "discopatch-core", initializer=torch.set_num_threads, initargs=(1,))
    own, all_there = torch.get_num_threads(), Barrier(threads)
    list(pool.map(lambda _: all_there.wait(), range(threads)))
    torch.set_num_threads(own)  # what one thread sets is what later ones of the process begin with
    return pool
