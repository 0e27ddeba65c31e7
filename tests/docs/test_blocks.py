"""What can be said of every block without running it."""

import configparser
import json
import re
import tomllib
from collections.abc import Callable

import pytest
import typer
import yaml

from discopatch.cli import app
from tests.docs.blocks import COMMANDS, NO_CODE, ROOT, Block, blocks_of, pages


def read_ini(text: str) -> list[str]:
    parser = configparser.ConfigParser()
    parser.read_string(text)
    return parser.sections()


READ: dict[str, Callable[[str], object]] = {"json": json.loads, "yaml": yaml.safe_load, "ini": read_ini}
MOST_NOT_RUN = 22
MOST_MEASUREMENTS = 36
BLOCKS = [block for page in pages() for block in blocks_of(page)]
LINES = [(block, words) for block in BLOCKS if block.language in COMMANDS for words in block.commands()]


def named(program: str) -> list[object]:
    """The commands that begin with this word."""
    return [
        pytest.param(words, id=f"{block.place} {' '.join(words)[:60]}") for block, words in LINES if words[0] == program
    ]


def test_every_block_says_what_it_is() -> None:
    assert {block.language for block in BLOCKS} <= {"python", *COMMANDS, *NO_CODE}


def test_blocks_that_are_not_run_are_few_and_say_why() -> None:
    left_out = [block for block in BLOCKS if block.not_run is not None]
    assert all(block.not_run and len(block.not_run) > 10 for block in left_out)
    measurements = [block for block in left_out if is_measurement(block)]
    others = [f"{block.place}: {block.not_run}" for block in left_out if block not in measurements]
    assert len(others) <= MOST_NOT_RUN, "\n".join(others)
    assert len(measurements) <= MOST_MEASUREMENTS


def is_measurement(block: Block) -> bool:
    """Whether it makes a figure of the page; scripts of studies are run in tests/studies, in their smallest form."""
    return block.language in COMMANDS and any(words[0] == "python" for words in block.commands())


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language in READ], ids=lambda each: each.place)
def test_files_that_are_shown_can_be_read(block: Block) -> None:
    assert READ[block.language](block.text)


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language == "python"], ids=lambda each: each.place)
def test_python_can_be_compiled(block: Block) -> None:
    compile(block.text, block.place, "exec")


@pytest.mark.parametrize("words", named("discopatch"))
def test_a_command_has_options_that_there_are(words: list[str]) -> None:
    """Also where it is not run, as in hours of training."""
    command = typer.main.get_command(app)
    name, *rest = words[1:]
    if name.startswith("-"):
        return
    command = command.commands[name]  # type: ignore[attr-defined]
    if hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(name, [each for each in rest if each not in ("[--reference", "refs]", "...")])


@pytest.mark.parametrize("words", named("python"))
def test_a_script_is_there_with_the_options_that_are_given(words: list[str]) -> None:
    assert words[1].startswith("studies/")
    source = (ROOT / words[1]).read_text(encoding="utf-8")
    for each in words[2:]:
        if each.startswith("--"):
            name = each.removeprefix("--").removeprefix("no-").replace("-", "_")
            assert re.search(rf"\b{name}\b", source) or each in source


@pytest.mark.parametrize("words", named("pip"))
def test_extras_that_are_installed_are_there(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for each in words:
        if match := re.fullmatch(r"(?:discopatch|\.)\[(.+)\]", each):
            assert set(match[1].split(",")) <= set(extras)


@pytest.mark.parametrize("words", named("make"))
def test_a_target_of_make_is_there(words: list[str]) -> None:
    assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
