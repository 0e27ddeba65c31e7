"""Forked processes that can compute: torch's threads do not survive a fork, and who waits for them waits for ever."""

import ctypes
import os
import sys
import warnings
from functools import cache
from pathlib import Path

import torch

HARD_PAUSE = 2  # omp_pause_hard: the threads end
HANGS = (
    "a process that has computed with torch's threads was forked, and this torch cannot end them first: computing in "
    "the child will hang. Start processes with multiprocessing.get_context('spawn'), or call torch.set_num_threads(1) "
    "before anything is computed"
)


@cache
def make_forks_safe() -> None:
    """Ends torch's threads before each fork of this process; both processes start new ones when they compute again."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=end_threads)


def end_threads() -> None:
    """Ends the threads that compute for the calling thread; warns where that cannot be done."""
    if torch.get_num_threads() > 1 and not all(map(pause, gnu_openmp())):
        warnings.warn(HANGS, RuntimeWarning, stacklevel=3)


def pause(library: ctypes.CDLL) -> bool:
    """Whether OpenMP ended its threads, which it can do since GCC 9."""
    function = getattr(library, "omp_pause_resource_all", None)
    return function is not None and function(HARD_PAUSE) == 0


@cache
def gnu_openmp() -> tuple[ctypes.CDLL, ...]:
    """GNU's OpenMP as it is loaded here, by torch or others; those of LLVM and Intel take care of forks themselves."""
    if sys.platform != "linux":
        return ()
    mapped = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in mapped if "libgomp" in line}
    return tuple(map(ctypes.CDLL, sorted(paths)))
