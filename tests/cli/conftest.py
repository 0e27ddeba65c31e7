"""Commands as they are typed."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from discopatch.cli import main


class Finished(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Finished]  # called with the arguments of the command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def command(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["discopatch", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return Finished(end.value.code, *capsys.readouterr())

    return command


def assert_error(finished: Finished, *mentioned: str) -> None:
    """Status 1 and one last line that names what is wrong, without a traceback."""
    assert finished.status == 1
    assert "Traceback" not in finished.err
    last = finished.err.splitlines()[-1]
    assert last.startswith("error: ")
    for each in mentioned:
        assert each in last


def assert_usage_error(finished: Finished, *mentioned: str) -> None:
    """Status 2 and a box that names the options, before anything is done."""
    assert finished.status == 2
    assert finished.out == ""
    for each in mentioned:
        assert each in " ".join(finished.err.replace("\u2502", " ").split())
