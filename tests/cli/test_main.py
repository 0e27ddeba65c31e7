"""What all commands have in common: quick help, errors in one line, a progress bar."""

import io
import os
import re
import subprocess
import sys
from inspect import signature

import pytest
from rich.console import Console

from discopatch import Detector
from discopatch.cli import main
from discopatch.cli.fit import fit
from discopatch.cli.options import DEFAULT_WEIGHTS_TEXT, HEAD, progress_bar
from discopatch.errors import ParameterError
from discopatch.heads import DEFAULT_HEAD, HEADS
from discopatch.pretrained import DEFAULT_WEIGHTS

from .conftest import Run, assert_error

HEAVY = {"torch", "numpy", "PIL", "scipy", "jinja2", "rich.progress"}


def test_a_shell_completes_commands_and_options_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from discopatch.cli import main; sys.argv = ['discopatch']\n"
        "try:\n    main()\nexcept SystemExit:\n    print('modules', *sys.modules)"
    )
    for words, expected in (("discopatch doc", "doctor"), ("discopatch score --allow-m", "--allow-missing")):
        asked = {"_DISCOPATCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        environment = {**os.environ, **asked}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        offered, _, modules = done.stdout.partition("modules")
        assert offered.split() == [expected]
        assert not HEAVY & set(modules.split())


@pytest.mark.parametrize("error", [ParameterError("raise the rate"), OSError("disk full"), ValueError("a mistake")])
def test_an_error_is_one_line_unless_a_traceback_is_asked_for_or_it_is_a_mistake_of_the_program(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("discopatch.load", fail)
    arguments = ("explain", "a.png", "--detector", "d", "-o", "h.png")
    if str(error) != "a mistake":
        finished = run(*arguments)
        assert_error(finished, str(error))
        assert len(finished.err.splitlines()) == 1
        monkeypatch.setenv("DISCOPATCH_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["discopatch", *arguments])
    with pytest.raises(type(error)):
        main()


def test_fit_has_the_defaults_of_the_detector() -> None:
    options, parameters = signature(fit).parameters, signature(Detector).parameters
    shared = options.keys() & parameters.keys()
    assert parameters.keys() - shared == {"sampling", "max_bytes"}
    shared -= {"max_pixels", "weights", "head"}  # None, so that --help does not import torch
    assert {name: options[name].default for name in shared} == {name: parameters[name].default for name in shared}


def test_the_help_names_all_heads_and_the_defaults() -> None:
    assert set(HEADS) <= set(re.findall(r"\w+", HEAD))
    assert HEAD.endswith(f"Default: {DEFAULT_HEAD}.")
    assert f"Default: {DEFAULT_WEIGHTS}." == DEFAULT_WEIGHTS_TEXT


def shown_on(console: Console) -> str:
    """The text that the console shows, without colours."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_activity_count_total_and_time(is_terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=120)
    with progress_bar(console, "scoring [a]", total=12_000) as bar:
        bar(1_000)
    with progress_bar(console, "reading") as bar:
        bar.follow_fit(2, 2)
        bar.follow_fit(1, 5)  # images to calibrate on come after those to fit
    for shown in (r"scoring \[a\].* 1000/12000 \d:\d\d:\d\d ", r"extracting .* 1/5 "):
        assert bool(re.search(shown, shown_on(console))) == is_terminal
