"""What is listed: every image, every refusal, every setting."""

from discopatch.report.content import ReportContent
from discopatch.report.words import counted, file_name, p_value_text, rounded_up, safe, score_format

MOST_ROWS = 2_000  # a phone still sorts so many at once


def verdict(*, is_ood: bool) -> str:
    """In words, so that it needs no colour."""
    word = "unlike" if is_ood else "like"
    return f'<span class="verdict {word}">{word}<span> normal</span></span>'


def images(content: ReportContent) -> str:
    """The table of all scored images; `behaviour.js` makes it sortable."""
    if not content.scored:
        return ""
    number, smallest = score_format(content.calibration_scores), content.smallest_p_value
    rows = "".join(
        f"<tr><td>{file_name(each.name)}</td>"
        f'<td data-value="{each.score!r}">{number(each.score)}</td>'
        f'<td data-value="{each.p_value!r}">{p_value_text(each.p_value, smallest=smallest)}</td>'
        f"<td>{verdict(is_ood=each.is_ood)}</td></tr>"
        for each in content.scored[:MOST_ROWS]
    )
    return (
        '<section aria-labelledby="all"><h2 id="all">All scored images</h2>'
        f'<p class="note">{_shown(len(content.scored))} The p-value is the share of normal images at least as strange,'
        f" counting the image itself; with {counted(len(content.calibration_scores), 'normal image')} none is below"
        f" {rounded_up(smallest)}.</p>"
        '<div class="tools" id="filter" hidden><input type="search" aria-label="Filter by name or verdict"'
        ' placeholder="Filter by name or verdict" autocomplete="off" spellcheck="false"><output></output></div>'
        '<div class="scroll" role="region" aria-labelledby="all" tabindex="0"><table id="images"><thead><tr>'
        '<th scope="col">Name</th><th scope="col" class="number" aria-sort="descending">Score</th>'
        '<th scope="col" class="number">p-value</th><th scope="col">Verdict</th>'
        f"</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _shown(scored: int) -> str:
    if scored > MOST_ROWS:
        return f"The {MOST_ROWS:,} strangest of {scored:,} images, strangest first."
    return "Strangest first."


def refusals(content: ReportContent) -> str:
    """The files that could not be scored, each with its reason."""
    if not content.refused:
        return ""
    left_out = len(content.refused) - MOST_ROWS
    rows = "".join(
        f"<tr><td>{file_name(each.name)}</td><td>{safe(each.error or 'no reason given')}</td></tr>"
        for each in content.refused[:MOST_ROWS]
    )
    more = f'<p class="note">Only the first {MOST_ROWS:,} are listed; {left_out:,} more follow.</p>'
    return (
        '<section aria-labelledby="refused"><h2 id="refused">Refused files</h2>'
        f'<p class="note">{counted(len(content.refused), "file")} could not be scored;'
        f" no other number counts {'it' if len(content.refused) == 1 else 'them'}.</p>{more if left_out > 0 else ''}"
        '<div class="scroll" role="region" aria-labelledby="refused" tabindex="0"><table><thead><tr>'
        f'<th scope="col">Name</th><th scope="col">Why</th></tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def settings(content: ReportContent) -> str:
    """What it takes to get the same numbers again."""
    if not content.settings:
        return ""
    rows = "".join(
        f"<div><dt>{safe(name)}</dt><dd>{safe(value)}</dd></div>" for name, value in content.settings.items()
    )
    return (
        '<section aria-labelledby="settings"><h2 id="settings">How this was made</h2>'
        f'<dl class="settings">{rows}</dl></section>'
    )
