"""The links of the files that people read on the code's own site rather than on ours."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "deploy/README.md")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"""\]\(\s*<?([^)\s>]+)>?[^)]*\)|<(?:a|img)\b[^>]*?\b(?:href|src)=["']([^"']+)["']""")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
NAMED = re.compile(r"""<[^>]+\b(?:id|name)=["']([^"']+)["']""")


def links(page: str) -> list[str]:
    """The targets in the page that lie in the repository."""
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    found = [first or second for first, second in LINK.findall(text)]
    return [each for each in found if not re.match(r"[a-z]+:", each)]


@cache
def anchors(path: Path) -> set[str]:
    """The ids of the page's headings as GitHub makes them, and those that it gives itself."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    found: set[str] = set(NAMED.findall(text))
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = next(each for each in range(len(found) + 1) if (f"{name}-{each}" if each else name) not in found)
        found.add(f"{name}-{number}" if number else name)
    return found


@pytest.mark.parametrize("page", FILES)
def test_every_link_leads_to_something(page: str) -> None:
    for link in links(page):
        place, _, anchor = link.partition("#")
        target = (ROOT / page).parent / place if place else ROOT / page
        assert target.exists(), f"{page}: {link}"
        assert target.resolve().is_relative_to(ROOT), f"{page}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page}: {link}"


def test_anchors_are_those_of_the_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One head\n```\n# no heading\n```\n## `fit`, and more\n## One head\n")
    assert anchors(page) == {"one-head", "fit-and-more", "one-head-1"}
