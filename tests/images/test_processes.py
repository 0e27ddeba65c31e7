"""A pool of processes answers, passes errors on, and never waits for one that has ended."""

import gc
import multiprocessing
import os
import signal
import struct
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection

import pytest

from discopatch.images.workers import ProcessPool

LONG = 60  # seconds, after which an answer will never come
PREPARED: list[int] = []


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(1, prepare) as found:
        yield found
    assert multiprocessing.active_children() == []


def prepare() -> None:
    PREPARED.append(os.getpid())


def prepared() -> list[int]:
    return PREPARED


def fail() -> None:
    raise KeyError("nothing of that name")


def what_cannot_be_passed_on() -> Callable[[], None]:
    return lambda: None


def half_an_answer() -> None:
    """Ends its process as if it had been killed in the midst of a long answer."""
    pipe = next(each for each in gc.get_objects() if isinstance(each, Connection))
    os.write(pipe.fileno(), struct.pack("!i", 1000) + b"the beginning")
    os.kill(os.getpid(), signal.SIGKILL)


def test_answers_are_those_of_processes_that_were_prepared(pool: ProcessPool) -> None:
    other = pool.submit(os.getpid).result(LONG)
    assert other != os.getpid()
    assert pool.submit(prepared).result(LONG) == [other]
    assert PREPARED == []
    assert list(pool.map(divmod, [7, 8], [2, 3], timeout=LONG)) == [(3, 1), (2, 2)]
    assert pool.submit(int, "11", base=2).result(LONG) == 3


@pytest.mark.parametrize(
    ("call", "error", "told"), [(fail, KeyError, "fail"), (what_cannot_be_passed_on, Exception, "lambda")]
)
def test_an_error_is_passed_on_and_the_process_goes_on(
    pool: ProcessPool, call: Callable[[], object], error: type[Exception], told: str
) -> None:
    before = pool.submit(os.getpid).result(LONG)
    with pytest.raises(error) as raised:
        pool.submit(call).result(LONG)
    assert told in str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
    assert pool.submit(os.getpid).result(LONG) == before


def test_a_process_that_ends_in_the_midst_of_an_answer_is_not_waited_for(pool: ProcessPool) -> None:
    for call in (half_an_answer, os.getpid):
        with pytest.raises(BrokenProcessPool):
            pool.submit(call).result(LONG)
