"""Fenced code blocks of the documentation."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"(?:^<!-- ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "deploy/README.md")


@dataclass(frozen=True)
class Block:
    """One fenced block, with the comment on the line before it."""

    page: str
    language: str
    text: str
    comment: str

    @property
    def is_run(self) -> bool:
        return self.language in ("python", "bash") and not self.comment.startswith("not run: ")

    def commands(self) -> list[list[str]]:
        """The words of each command, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.language in ("bash", "") else []
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def pages() -> list[str]:
    """Every page by its path in the repository."""
    return [*OUTSIDE, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def blocks_of(page: str) -> list[Block]:
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [Block(page, language, text, comment) for comment, language, text in found]
