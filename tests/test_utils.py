"""A file is whole or not there, a missing package says what to install, and prefetched items keep their order."""

import itertools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from discopatch.errors import MissingExtraError
from discopatch.utils import escaped, prefetch, read_ahead, require, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failing_writer_leaves_the_old_content_and_no_partial_file(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, lambda partial: partial.write_text("old"))

    def write(partial: Path) -> None:
        partial.write_text("half of the ne")
        raise failure

    with pytest.raises(type(failure)):
        write_atomically(path, write)
    write_atomically(path, lambda partial: partial.write_text("another"), replace=False)
    assert path.read_text() == "old"
    assert names(path.parent) == ["file.txt"]


@pytest.mark.parametrize("missing", ["no_such_package", "colorsys"])
def test_a_missing_package_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "colorsys", None)
    with pytest.raises(MissingExtraError, match=rf"{missing}.*discopatch\[some\]"):
        require(missing, "some")


@pytest.mark.parametrize("steps", [0, 1, 3, 9])
def test_items_are_drawn_so_many_steps_ahead_and_none_is_lost(steps: int) -> None:
    drawn: list[int] = []
    late = prefetch((drawn.append(number) or number for number in range(5)), steps)  # type: ignore[func-returns-value]
    assert next(late) == 0
    assert len(drawn) == min(5, steps + 1)
    assert list(late) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("plain name [1] caf\u00e9 \u732b \U0001f408.png", "plain name [1] caf\u00e9 \u732b \U0001f408.png"),
        ("tab\tline\nreturn\r", "tab\\tline\\nreturn\\r"),
        ("\x1b[31mred\x9b0m\x07\x7f", "\\x1b[31mred\\x9b0m\\x07\\x7f"),
        ("caf\udce9", "caf\\xe9"),
        ("\ud83d", "\\ud83d"),
        ("\u202egnp.exe\u2028", "\\u202egnp.exe\\u2028"),
    ],
)
def test_names_are_escaped_to_one_line_that_no_terminal_acts_on(name: str, printed: str) -> None:
    assert escaped(name) == printed
    assert escaped(printed) == printed
    printed.encode()


def test_items_are_drawn_ahead_in_a_thread_and_an_error_comes_in_its_place() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for number in range(10):
            drawn.append(threading.get_ident())
            yield number
        raise ValueError("the end")

    stream = read_ahead(items(), 2)
    assert [next(stream) for _ in range(10)] == list(range(10))
    with pytest.raises(ValueError, match="the end"):
        next(stream)
    assert set(drawn) != {threading.get_ident()}
    assert len(set(drawn)) == 1


def test_a_stream_that_is_left_closes_what_it_draws_from() -> None:
    closed = []

    def items() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.append(True)

    stream = read_ahead(items(), 3)
    assert next(stream) == 0
    stream.close()
    assert closed == [True]
