"""Fenced code blocks of the documentation."""

import re
import shlex
from collections.abc import Sequence
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
        return self.language in ("python", "bash") and not self.comment.startswith(("not run: ", "needs: "))

    @property
    def needs(self) -> str:
        """The package of another project that a recipe needs; empty for other blocks."""
        return self.comment.removeprefix("needs: ") if self.comment.startswith("needs: ") else ""

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


NUMBER = r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w|\.\d)"
UNITS = r"(?:ms|s|seconds?|minutes?|hours?|points?|times|[kMGT]i?B|images/s|patches/s|microseconds)\b|%"
MEASURED = re.compile(rf"(?<![\w.-])\d[\d,]*\.\d+(?!\.?\d)(?!\w)|(?<![\w.-])\d[\d,]* (?:{UNITS})")
RULER = re.compile(r"\|[-:| ]+\|")


class Page:
    """The text of a page; what was compared with a stored result is crossed out, so that the rest can be found."""

    def __init__(self, name: str) -> None:
        text = FENCE.sub("\n\n", (ROOT / name).read_text(encoding="utf-8")).replace("**", "")
        parts = re.split(r"\n\s*\n|\n(?=[|#]|- |\d\. )", re.sub(r"^(#+ .*)$", r"\1\n", text, flags=re.MULTILINE))
        self.lines = [" ".join(part.split()) for part in parts]

    def says(self, words: str, expected: Sequence[float]) -> None:
        """The words stand there once, with these numbers, rounded as they are printed, where the words have {}."""
        pattern = re.compile(re.escape(words).replace(r"\{\}", f"({NUMBER})"))
        found = [(i, each) for i, line in enumerate(self.lines) for each in pattern.finditer(line)]
        assert len(found) == 1, words
        assert_rounded(found[0][1].groups(), expected, words)
        self.lines[found[0][0]] = self.lines[found[0][0]].replace(found[0][1][0], "")

    def has_row(self, heading: str, label: str, expected: Sequence[Sequence[float]]) -> None:
        """The first row with this label below the heading has these numbers in the cells of which some are expected.

        A cell may end before the numbers that are expected of it, such as those of an interval.
        """
        place = self.find_row(heading, label, [i for i, each in enumerate(expected, 1) if each])
        first, *cells = self.lines[place].strip("|").split("|")
        for i, values in enumerate(expected):
            if values:
                found = numbers(cells[i])
                assert_rounded(found, values[: len(found)], label)
                cells[i] = "_"
        self.lines[place] = f"|{first if any(map(numbers, cells)) else '_'}|{'|'.join(cells)}|"

    def find_row(self, heading: str, label: str, filled: Sequence[int] = ()) -> int:
        """The line of the first row with this label below the heading that has numbers in these cells."""
        for place in self.section(heading):
            cells = [cell.strip() for cell in self.lines[place].strip("|").split("|")]
            if len(cells) > 1 and cells[0] == label and all(numbers(cells[i]) for i in filled):
                return place
        raise AssertionError((heading, label))

    def section(self, heading: str) -> list[int]:
        """The numbers of the lines between the heading and the next one."""
        start = next(i for i, line in enumerate(self.lines) if line.startswith("#") and line.lstrip("# ") == heading)
        ends = (i for i, line in enumerate(self.lines) if i > start and line.startswith("#"))
        return list(range(start + 1, next(ends, len(self.lines))))

    def left_over(self, constants: Sequence[str] = ()) -> list[str]:
        """What stands around each measured number that is not crossed out.

        Measured is a decimal fraction, a number with a unit, and any number in a column that is aligned to the right.
        """
        found, right = [], [False]
        for line, after in zip(self.lines, [*self.lines[1:], ""], strict=True):
            if RULER.fullmatch(line):
                right = [cell.strip().endswith(":") for cell in line.strip("|").split("|")]
            elif not RULER.fullmatch(after):
                cells = line.strip("|").split("|") if line.startswith("|") else [line]
                pairs = zip(cells[1:], right[1:], strict=False)  # not every line is a row
                found += [f"{line}: {cell}" for cell, is_right in pairs if is_right and numbers(cell)]
                text = re.sub("|".join((r"\]\([^)]*\)", "`[^`]*`", *constants)), " ", line)
                found += [text[max(0, each.start() - 40) : each.end() + 20] for each in MEASURED.finditer(text)]
        return found


def numbers(cell: str) -> list[str]:
    return re.findall(NUMBER, re.sub(r"\]\(.*?\)", "", cell))


def assert_rounded(found: Sequence[str], expected: Sequence[float], where: str) -> None:
    """Integers with a comma may be rounded to three digits: 13,100 is 13,050 to 13,150."""
    assert len(found) == len(expected), (where, found, expected)
    for text, value in zip(found, expected, strict=True):
        digits = text.replace(",", "")
        zeros = min(len(digits) - len(digits.rstrip("0")), len(digits) - 3) if "," in text else 0
        places = len(text.partition(".")[2]) - zeros
        assert abs(float(digits) - value) <= 0.51 * 10.0**-places, (where, text, value)
