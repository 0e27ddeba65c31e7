"""The page of all commands with their arguments and options, from the parsers themselves."""

import re
from html import escape
from typing import Any

import typer

from discopatch.cli import app

INTRODUCTION = (
    "Every command, as `discopatch COMMAND --help` prints it. Images are files, folders, patterns, shards, tables, "
    "lists or addresses of stores: [what is read](../detector.md#images)."
)
NAMES = re.compile(r"((?:-\S+(?: / |, ?| |$))+|\S+)(.*)")  # of an option, or of an argument
MARKUP = re.compile(r"\[/?[a-z ]+\]")  # of rich


def commands_page() -> str:
    """The page in Markdown: a heading for each command, and a table for each panel of its options."""
    lines = ["# Commands", "", INTRODUCTION, ""]
    for name, command in all_commands(typer.main.get_command(app), "discopatch"):
        lines += command_lines(name, command)
    return "\n".join(lines) + "\n"


def all_commands(command: Any, name: str) -> list[tuple[str, Any]]:
    """Each command below this one with its whole name, in the order of `--help`."""
    if not hasattr(command, "commands"):
        return [(name, command)]
    found = []
    for child, each in command.commands.items():
        found += all_commands(each, f"{name} {child}")
    return found


def command_lines(name: str, command: Any) -> list[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"## {name}", "", plain(command.help or ""), "", "```text", f"{name} {usage}", "```", ""]
    panels: dict[str, list[tuple[str, str]]] = {}
    for each in command.params:
        record = each.get_help_record(context)
        if record is not None and each.name != "help":
            kind = "Arguments" if each.param_type_name == "argument" else "Options"
            panels.setdefault(getattr(each, "rich_help_panel", None) or kind, []).append(record)
    for title, records in panels.items():
        lines += [f"| {title} | |", "|---|---|"]
        lines += [f"| {option(shown)} | {cell(text)} |" for shown, text in records]
        lines.append("")
    return lines


def option(shown: str) -> str:
    """The names, which stay in one line, and what they take."""
    match = NAMES.fullmatch(shown)
    assert match is not None
    names, value = (escape(each.strip()).replace("|", "&#124;") for each in match.groups())
    return f'<code class="option">{names}</code>' + (f" <code>{value}</code>" if value else "")


def plain(text: str) -> str:
    return MARKUP.sub("", text).strip()


def cell(text: str) -> str:
    """The text as it may stand in a table."""
    return plain(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
