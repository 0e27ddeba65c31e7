"""Links, names, options and figures of the pages, checked without running their code."""

import ast
import importlib
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import typer

import discopatch
from discopatch.cli import app
from tests.docs.blocks import FENCE, ROOT, blocks_of, pages

LINK = re.compile(r"""\]\(<?([^)\s>]+)>?[^)]*\)|<(?:a|img|iframe)\b[^>]*?\b(?:href|src)=["']([^"']+)["']""")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
BLOCKS = [block for page in pages() for block in blocks_of(page)]
COMMANDS = [(block.page, words) for block in BLOCKS for words in block.commands()]
GENERATED = {  # pages of the site that do not lie in docs/: see docs/theme/site_hooks.py
    "docs/contributing.md": "CONTRIBUTING.md",
    "docs/deployment.md": "deploy/README.md",
    "docs/reference/commands.md": "README.md",
}


@cache
def anchors(path: Path) -> set[str]:
    """The ids of the headings of a page, as GitHub makes them."""
    headings = HEADING.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", pages())
def test_links_lead_to_files_and_headings(page: str) -> None:
    for pair in LINK.findall(FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))):
        place, _, anchor = (pair[0] or pair[1]).partition("#")
        if re.match(r"[a-z]+:", place):
            continue
        target = ((ROOT / page).parent / place).resolve() if place else ROOT / page
        if target.suffix == ".html" and not target.exists():  # of the front page, which is HTML in part
            target = target.with_suffix(".md")
        target = ROOT / GENERATED.get(str(target.relative_to(ROOT)), str(target.relative_to(ROOT)))
        assert target.exists(), (place, anchor)
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), (place, anchor)


def test_commands_have_the_options_that_pages_use() -> None:
    for page, words in COMMANDS:
        if words[0] != "discopatch" or words[1].startswith("-"):
            continue
        command, rest = typer.main.get_command(app), words[1:]
        while hasattr(command, "commands"):
            assert rest[0] in command.commands, (page, words)
            command, rest = command.commands[rest[0]], rest[1:]
        options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        assert {each.partition("=")[0] for each in rest if each.startswith("-")} <= options, (page, words)


def test_scripts_extras_and_make_targets_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page, words in COMMANDS:
        if words[0] == "python":
            assert (ROOT / words[1]).exists(), (page, words)
        elif words[0] == "make":
            assert words[1] in targets, (page, words)
        elif words[0] == "pip":
            named = [name for each in words for found in re.findall(r"\[(.+)\]", each) for name in found.split(",")]
            assert set(named) <= set(extras), (page, words)
    table = re.findall(r"^\| (`.*`) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", " ".join(table))) == set(extras) - {"docs", "test", "dev"}


def test_imported_names_exist() -> None:
    for block in BLOCKS:
        if block.language == "python":
            for node in ast.walk(ast.parse(block.text)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("discopatch"):
                    module = importlib.import_module(node.module or "")
                    assert all(hasattr(module, each.name) for each in node.names), (block.page, ast.unparse(node))


def test_the_reference_has_every_public_name() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))
    named = {"discopatch.__version__", "discopatch.DiscopatchError", *re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)}
    for name in list(named):
        module, _, each = name.rpartition(".")
        found = getattr(importlib.import_module(module), each, None) or importlib.import_module(name)
        named |= {f"{module}.{each}" for each in getattr(found, "__all__", ())}
    assert {f"discopatch.{each}" for each in discopatch.__all__} <= named
