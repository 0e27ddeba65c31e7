"""Pages of the site that do not lie in `docs/`: the commands, and files of the repository's root."""

import re
from html import escape
from pathlib import Path
from posixpath import relpath
from typing import Any

import typer
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from discopatch.cli import app

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {  # files of the repository that are pages of the site
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "deployment.md",
    "notebooks/README.md": "notebooks/index.md",
}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
MARKUP = re.compile(r"\[/?[a-z ]+\]")  # of rich
COMMANDS = """# Commands

Every command, as `discopatch COMMAND --help` prints it. Images are [files, folders, shards, tables, lists or
addresses](../images.md). The exit status is 0 on success, 1 after an error, 2 for a wrong option, 130 or 143 when the
command was stopped; `score --fail-on` also has [3 and 4](../how-to/gate.md).
"""


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages and the notebooks."""
    pages = {"reference/commands.md": commands_page()}
    for source, place in OUTSIDE.items():
        pages[place] = moved_links((ROOT / source).read_text(encoding="utf-8"), source, place)
    pages |= {f"notebooks/{path.name}": path.read_text(encoding="utf-8") for path in ROOT.glob("notebooks/*.ipynb")}
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Returns the page with links to files outside of `docs/` adapted."""
    place = page.file.src_uri
    return markdown if page.file.generated_by else moved_links(markdown, f"docs/{place}", place)


def on_page_content(html: str, page: Page, config: Any, files: Files) -> str:
    """Returns the page with each table in a container that scrolls."""
    return re.sub(r"<table>.*?</table>", r'<div class="table">\g<0></div>', html, flags=re.DOTALL)


def moved_links(text: str, source: str, place: str) -> str:
    """Returns the text of a file of the repository with links that fit its place on the site."""

    def moved(match: re.Match[str]) -> str:
        target = relpath(f"/{source}/../{match[1]}", "/")
        if target not in OUTSIDE and not target.startswith(("docs/", "notebooks/")):
            return match[0]
        return relpath("/" + OUTSIDE.get(target, target.removeprefix("docs/")), f"/{place}/..")

    return LINK.sub(moved, text)


def commands_page() -> str:
    """Returns the page of all commands in Markdown: a heading each, and a table for each panel of options."""
    lines = [COMMANDS]
    for name, command in all_commands(typer.main.get_command(app), "discopatch"):
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f"## {name}", "", plain(command.help or ""), "", "```text", f"{name} {usage}", "```", ""]
        panels: dict[str, list[str]] = {}
        for each in command.params:
            record = each.get_help_record(context)
            if record is not None and each.name != "help":
                title = "Arguments" if each.param_type_name == "argument" else "Options"
                shown, text = escape(record[0]).replace("|", "&#124;"), plain(record[1]).replace("|", "\\|")
                row = f"| <code>{shown}</code> | {escape(text, quote=False)} |".replace("\n", " ")
                panels.setdefault(getattr(each, "rich_help_panel", None) or title, []).append(row)
        for title, rows in panels.items():
            lines += [f"| {title} | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def all_commands(command: Any, name: str) -> list[tuple[str, Any]]:
    """Returns each command below this one with its whole name, in the order of `--help`."""
    if not hasattr(command, "commands"):
        return [(name, command)]
    return [found for child, each in command.commands.items() for found in all_commands(each, f"{name} {child}")]


def plain(text: str) -> str:
    return MARKUP.sub("", text).strip()
