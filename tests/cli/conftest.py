"""Commands as a person types them."""

import sys
from collections.abc import Callable

import pytest

from discopatch.cli import main

Run = Callable[..., tuple[int, str, str]]  # the words -> status, what was printed, what was said beside it


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["discopatch", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, printed.out, printed.err

    return command
