"""What the site has beside the pages of `docs/`: the reference, and the pages that lie outside of it."""

import re
from pathlib import Path
from posixpath import relpath
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_commands import commands_page
from site_reference import index_page, python_pages

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


def on_files(files: Files, config: Any) -> Files:
    """The files of the site, with those that are made here."""
    pages = {**python_pages(ROOT / "src" / "discopatch"), "reference/commands.md": commands_page()}
    pages["reference/index.md"] = index_page()
    for source, place in OUTSIDE.items():
        pages[place] = moved_links((ROOT / source).read_text(encoding="utf-8"), source, place)
    notebooks = {f"notebooks/{path.name}": path.read_text(encoding="utf-8") for path in ROOT.glob("notebooks/*.ipynb")}
    for place, text in {**pages, **notebooks}.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """The page with its links to files outside of `docs/`; tables of whole benchmarks are not searched."""
    place = page.file.src_uri
    if place.startswith("results/"):
        page.meta["search"] = {"exclude": True}
    return markdown if page.file.generated_by else moved_links(markdown, f"docs/{place}", place)


def moved_links(text: str, source: str, place: str) -> str:
    """The text of a file of the repository with links that fit its place on the site."""

    def moved(match: re.Match[str]) -> str:
        target = relpath(f"/{source}/../{match[1]}", "/")
        if target not in OUTSIDE and not target.startswith(("docs/", "notebooks/")):
            return match[0]
        return relpath("/" + OUTSIDE.get(target, target.removeprefix("docs/")), f"/{place}/..")

    return LINK.sub(moved, text)
