"""Who decodes: threads of this process, or processes of their own."""

import os
import signal
import threading
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Processes:
    """So many processes, for machines with many cores: threads share one lock and stop gaining at about four.

    They start in a second and find a script's own code again by importing it: what it does must stand below
    `if __name__ == "__main__":`.
    """

    count: int = os.cpu_count() or 1


Workers: TypeAlias = int | Processes  # a number is one of threads

DEFAULT_WORKERS = min(8, os.cpu_count() or 1)
LOST = (
    "a process that decodes images has ended: either memory ran out (then use fewer), or your script starts processes "
    'while it is imported (then put its code below `if __name__ == "__main__":`), or use threads'
)


@dataclass(frozen=True, slots=True)
class Crew:
    """Workers as the stream needs to know them."""

    pool: Executor
    count: int
    part: int  # images a task: what passes between processes has a price of its own

    @classmethod
    def of(cls, workers: Workers) -> "Crew":
        """Not at work yet."""
        if isinstance(workers, int):
            return cls(ThreadPoolExecutor(workers, thread_name_prefix="discopatch-images"), workers, part=1)
        pool = ProcessPoolExecutor(workers.count, mp_context=get_context("spawn"), initializer=leave_with_parent)
        return cls(pool, workers.count, part=8)


def leave_with_parent() -> None:
    """What a process does first: the keyboard is its parent's to hear, and it ends when the parent does, however."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="discopatch-parent").start()
