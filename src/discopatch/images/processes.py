"""A pool of processes that each answer over a pipe of their own, so that none can let the others hang."""

import os
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

Made = TypeVar("Made")


class ProcessPool(ThreadPoolExecutor):
    """A number of processes, started when there is work, each with a thread and a pipe of its own.

    `prepare` is called first in each. The tasks of a process that has ended fail with BrokenProcessPool. Processes end
    with their parent, however that ends. Those of `ProcessPoolExecutor` share one pipe: a process that is killed in the
    midst of an answer would let all others hang.
    """

    def __init__(self, count: int, prepare: Callable[[], object] = int) -> None:
        super().__init__(count, thread_name_prefix="discopatch-processes")
        self._prepare, self._own, self._starting = prepare, threading.local(), threading.Lock()
        self._started: list[tuple[BaseProcess, Connection]] = []

    def submit(self, fn: Callable[..., Made], /, *args: Any, **kwargs: Any) -> Future[Made]:
        return super().submit(self._ask, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        for _, pipe in self._started:
            pipe.close()
        for process, _ in self._started:
            process.join()
        self._started.clear()

    def _ask(self, function: Callable[..., Made], args: tuple[Any, ...], options: dict[str, Any]) -> Made:
        try:
            pipe = self._pipe()
            pipe.send((function, args, options))
            found, error = pipe.recv()
        except (EOFError, OSError) as ended:
            raise BrokenProcessPool("a process has ended") from ended
        if error is not None:
            raise error
        made: Made = found
        return made

    def _pipe(self) -> Connection:
        """To the process of the calling thread, which is started when it is first needed."""
        if not hasattr(self._own, "pipe"):
            context = get_context("spawn")
            near, far = context.Pipe()
            process = context.Process(target=answer, args=(far, self._prepare), daemon=True)
            with far, self._starting:  # closed here, since the pipe ends with the last who holds its other end
                process.start()
                self._started.append((process, near))
            self._own.pipe = near
        pipe: Connection = self._own.pipe
        return pipe


def answer(pipe: Connection, prepare: Callable[[], object]) -> None:
    """What a process does: all that it is asked, until nobody can ask any more."""
    leave_with_parent()
    prepare()
    with suppress(EOFError, OSError):
        while True:
            answered = outcome(*pipe.recv())
            try:
                pipe.send(answered)
            except OSError:
                raise
            except Exception as error:  # it cannot be passed on
                pipe.send((None, error))


def outcome(
    function: Callable[..., Made], args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Made | None, Exception | None]:
    """What the function makes of it, or the error that it raises."""
    try:
        return function(*args, **options), None
    except Exception as error:
        error.add_note(f"in a process:\n{traceback.format_exc()}")
        return None, error


def leave_with_parent() -> None:
    """Called first in a process: it ignores the keyboard, and ends whenever and however its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="discopatch-parent").start()
