"""The report: one HTML file that needs nothing else, to be opened from a mail or a stick, today or in ten years."""

import base64
import hashlib
import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from string import Template

from discopatch.files import write_atomically
from discopatch.report import cards, table
from discopatch.report.content import ReportContent
from discopatch.report.histogram import histogram
from discopatch.report.words import expected_false_alarms, headline, moment, promise, safe

__all__ = ["ReportContent", "render", "write_report"]

_HEADING = re.compile(r'<h2 id="([^"]+)">([^<]+)</h2>')
_WIDTHS = {"wide": 960, "narrow": 340}


def write_report(path: Path, content: ReportContent) -> None:
    """Atomically, in UTF-8."""
    page = render(content)
    write_atomically(path, lambda beside: beside.write_text(page, encoding="utf-8", newline="\n"))


def render(content: ReportContent) -> str:
    """The whole page."""
    behaviour = _part("behaviour.js")
    sections = {
        "histogram": _histogram(content),
        "close_ups": cards.close_ups(content),
        "images": table.images(content),
        "refusals": table.refusals(content),
        "settings": table.settings(content),
    }
    return Template(_part("page.html")).substitute(
        policy=_policy(behaviour),
        title=safe(content.title),
        created=safe(content.created),
        moment=safe(moment(content.created)),
        headline=headline(content),
        promise=promise(content),
        style=_part("style.css"),
        totals=_totals(content),
        links=_links(sections.values()),
        behaviour=behaviour,
        **sections,
    )


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy(behaviour: str) -> str:
    """Nothing is fetched; and of scripts only ours runs, where the browser knows hashes (it then ignores the rest)."""
    digest = base64.b64encode(hashlib.sha256(f"\n{behaviour}".encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'unsafe-inline' 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def _totals(content: ReportContent) -> str:
    scored, flagged, refused = len(content.scored), content.flagged, len(content.refused)
    tiles = [
        (f"{scored:,}", "scored", ""),
        (f"{flagged:,}", "flagged as unlike the normal ones", "warn" if flagged else ""),
        (expected_false_alarms(content), "false alarms expected at most, if all were normal", ""),
        (f"{refused:,}", "refused, with a reason", ""),
    ]
    return "".join(f'<div class="{kind}"><dt>{words}</dt><dd>{number}</dd></div>' for number, words, kind in tiles)


def _links(sections: Iterable[str]) -> str:
    """To every section that there is, by its heading."""
    headings = (heading.groups() for section in sections if (heading := _HEADING.search(section)))
    links = "".join(f'<a href="#{place}">{words}</a>' for place, words in headings)
    return f'<nav aria-label="Sections">{links}</nav>' if links else ""


def _histogram(content: ReportContent) -> str:
    """Twice, as letters that shrink with the page cannot be read on a phone; the style sheet shows one."""
    if not content.scored and not content.calibration_scores.size:
        return ""
    note = '<p class="note">The normal images are those held out to set the threshold.</p>'
    drawings = "".join(
        f'<div class="{name}">{histogram(content, width=width)}</div>' for name, width in _WIDTHS.items()
    )
    return f'<section aria-labelledby="scores"><h2 id="scores">How the scores compare</h2>{note}{drawings}</section>'
