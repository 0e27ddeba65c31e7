"""The code on the pages: fenced blocks of Python and of commands, and what is said about those that are not run."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
PRINTED = "<!-- printed -->"  # what the commands of the block before print
COMMANDS = ("", "bash")  # fences of commands; output is fenced as text
NO_CODE = ("text", "json", "yaml", "sql", "ini")
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md")  # pages that do not lie in docs/


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its first line of text."""

    page: str
    line: int
    language: str
    text: str
    not_run: str | None  # why
    printed: bool

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.not_run is None and self.language in ("python", *COMMANDS)

    def lines(self) -> list[str]:
        """Each command as it is typed, in one line."""
        return [line for line in self.text.replace("\\\n", " ").splitlines() if shlex.split(line, comments=True)]

    def commands(self) -> list[list[str]]:
        """The words of each command, without comments."""
        return [shlex.split(line, comments=True) for line in self.lines()]


def pages() -> list[str]:
    """The README and every page of the site, but for the tables of whole benchmarks."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    return [*OUTSIDE, *(str(each.relative_to(ROOT)) for each in docs if each.parent.name != "results")]


def blocks_of(page: str) -> list[Block]:
    found: list[Block] = []
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        before = lines[start - 1].strip() if start else ""
        marked = NOT_RUN.fullmatch(before)
        reason = marked[1] if marked else None
        text = "\n".join(lines[start + 1 : number]) + "\n"
        language = lines[start].removeprefix("```").strip()
        found.append(Block(page, start + 2, language, text, reason, printed=before == PRINTED))
        start = None
    assert start is None, f"{page}: the block from line {start} on has no end"
    return found
