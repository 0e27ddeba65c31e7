"""The page shows its content."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discopatch.calibration import DetectionRate
from discopatch.gate import FolderTest
from discopatch.report import ReportContent, write_report
from discopatch.report.page import MAX_CARDS, MAX_ROWS, Thumbnail, p_value_text, render_report
from discopatch.results import (
    COMPONENT_WORDS,
    OUT_OF_RANGE,
    UNUSUAL_SHAPE,
    Component,
    ComponentScore,
    Prediction,
    Reason,
)

from .samples import HOSTILE, close_ups, content, realistic, refused, scored

VOID = {"meta", "link", "img", "input", "wbr"}


class PageReader(HTMLParser):
    """A page as a strict parser reads it: its tags, which must come in pairs, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.page = page
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.pieces: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self.open):
            return
        self.pieces.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join("".join(self.pieces).split())


def predicted(flagged: int, normal: int, *, bad: int = 0) -> list[Prediction]:
    """Predictions of flagged images, of normal ones and of refused ones."""
    shifted = [scored(f"shifted-{number}.png", 2.0 + number, p_value=0.005, is_ood=True) for number in range(flagged)]
    usual = [scored(f"usual-{number}.png", number / 100) for number in range(normal)]
    return usual + shifted + [refused(f"bad-{number}.png") for number in range(bad)]


@pytest.mark.parametrize(
    ("predictions", "numbers"),
    [
        (predicted(7, 113), ["7", "120"]),
        (predicted(1, 119), ["1", "120"]),
        (predicted(0, 1200), ["1,200"]),
        (predicted(12, 0), ["12"]),
        (predicted(1, 0), []),
        (predicted(0, 1), []),
        (predicted(0, 0, bad=5), ["5"]),
        (predicted(0, 0, bad=1), []),
        ([], []),
    ],
)
def test_the_headline_has_the_numbers_and_is_the_title_too(predictions: list[Prediction], numbers: list[str]) -> None:
    page = render_report(content(predictions))
    (headline,) = re.findall("<h1>(.+?)</h1>", page)
    assert re.findall("[0-9,]+", headline) == numbers
    assert f"<title>Camera 3: {headline}</title>" in page


def test_the_guarantee_names_its_rate_and_the_images_that_it_has_or_needs() -> None:
    report = content(predicted(0, 9), threshold=float("inf"), calibration_scores=np.zeros(12))
    assert re.findall("[0-9]+", guarantee(report)) == ["1", "99", "12"]
    assert totals(report) == ["9", "0", "0", "0"]
    assert re.findall("[0-9]+", guarantee(content(predicted(1, 9)))) == ["1", "199"]


def guarantee(report: ReportContent) -> str:
    (text,) = re.findall('<p class="guarantee">(.*?)</p>', render_report(report), flags=re.DOTALL)
    return str(text)


def totals(report: ReportContent) -> list[str]:
    """The large numbers: scored, flagged, expected false alarms, refused."""
    shown = render_report(report).split('<dl class="totals">')[1].split("</dl>")[0]
    return re.findall("<dd>([^<]*)</dd>", shown)


def test_images_are_counted_once_and_listed_with_the_highest_score_first() -> None:
    assert totals(content(predicted(7, 113, bad=3))) == ["120", "7", "1.2", "3"]
    rows = PageReader(render_report(content([*predicted(2, 3), refused("b.png", "empty: no <bytes>")]))).rows
    assert ["b.png", "empty: no <bytes>"] in rows
    names = [row[0] for row in rows if len(row) == 5][1:]
    assert names == ["shifted-1.png", "shifted-0.png", "usual-2.png", "usual-1.png", "usual-0.png"]
    assert [row[3] for row in rows if len(row) == 5][1:] == ["flagged"] * 2 + ["normal"] * 3


def test_made_up_changes_are_a_table_with_intervals() -> None:
    rates = [DetectionRate("scratch", "4 px", 7, 12), DetectionRate("blur", "slight", 12, 12)]
    page = PageReader(render_report(content(detection_rates=rates)))
    assert page.rows[1:] == [
        ["scratch", "4 px", "7 of 12", "28 to 85\N{NO-BREAK SPACE}%"],
        ["blur", "slight", "12 of 12", "74 to 100\N{NO-BREAK SPACE}%"],
    ]


def test_a_long_table_is_cut_and_says_so() -> None:
    reader = PageReader(render_report(content(predicted(3, MAX_ROWS, bad=MAX_ROWS + 1))))
    rows = [row[0] for row in reader.rows]
    assert sum(name.startswith(("usual", "shifted")) for name in rows) == MAX_ROWS
    assert sum(name.startswith("bad") for name in rows) == MAX_ROWS
    assert "usual-0.png" not in rows, "the lowest score is left out"
    notes = re.findall('<p class="note">.*?</p>', reader.page, flags=re.DOTALL)
    assert any("2,000" in note and "2,003" in note for note in notes)
    assert any("2,000" in note and " 1 " in note for note in notes)


@pytest.mark.parametrize(
    ("p_value", "normal", "text"),
    [
        (1 / 200, 199, "≤ 0.005"),
        (2 / 200, 199, "0.01"),
        (0.421, 199, "0.43"),
        (1.0, 199, "1"),
        (1.0, 0, "≤ 1"),
        (0.0, 199, "≤ 0.005"),
    ],
)
def test_a_p_value_never_claims_more_than_is_known(p_value: float, normal: int, text: str) -> None:
    assert p_value_text(p_value, smallest=1 / (normal + 1)).replace("\N{NO-BREAK SPACE}", " ") == text


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_a_printed_p_value_is_never_below_the_true_one(normal: int, p_value: float) -> None:
    smallest = 1 / (normal + 1)
    printed = float(p_value_text(p_value, smallest=smallest).removeprefix("≤\N{NO-BREAK SPACE}"))
    true = max(p_value, smallest)
    assert true * (1 - 1e-9) <= printed <= true * 1.1 + 1e-12


def with_components(name: str, significant: set[str], *, is_ood: bool = True) -> Prediction:
    found = tuple(
        ComponentScore(each, 5.0 if each in significant else 0.5, each in significant) for each in COMPONENT_WORDS
    )
    return replace(scored(name, 2, p_value=0.005, is_ood=is_ood), components=found)


def test_close_ups_have_images_reasons_and_components_and_flagged_images_are_counted() -> None:
    predictions = [
        with_components("a.png", {"place"}),
        with_components("b.png", {"place", "acquisition"}),
        with_components("c.png", set()),
    ]
    predictions += [with_components("d.png", {"content"}, is_ood=False), refused("e.png")]
    place = Component("place", 5.0, "a place in it: lower <right>")
    shown = [replace(each, components=(place,)) for each in close_ups(predictions[:1])]
    folder = FolderTest(fails=True, p_value=0.001, images=1, flagged=1, text="the folder fails: <b> of all")
    page = render_report(content(predictions, close_ups=shown, folder=folder))
    assert "the folder fails: &lt;b&gt; of all" in page
    images = [value for name, value in PageReader(page).attributes if name == "src"]
    assert len(images) == 2
    assert all(value and value.startswith("data:image/webp;base64,") for value in images)
    for reason in shown[0].reasons:
        assert page.count(reason.text) == 2, "on the card and in the table"
        assert f"{reason.z:.1f}" in page
    assert "a place in it: lower <right> (z = 5.0)" in PageReader(page).text.replace("\N{NO-BREAK SPACE}", " ")
    counts = page.split('<dl class="totals significant">')[1].split("</dl>")[0]
    assert re.findall("<dt>([^<]*)</dt><dd>([^<]*)</dd>", counts) == [
        (COMPONENT_WORDS["acquisition"], "1"),
        (COMPONENT_WORDS["content"], "0"),
        (COMPONENT_WORDS["place"], "2"),
    ]


def test_a_reason_stands_once_on_a_card_and_in_the_table() -> None:
    predictions = [with_components("a.png", {"acquisition"}), with_components("b.png", {"place", "content"})]
    blur, haze = Reason("blur", 7.0, "less fine detail than normal"), Reason("haze", 6.0, "hazier than normal")
    taken = Component("acquisition", 5.0, "how it was taken: less fine detail")
    (shown,) = close_ups(predictions[:1])
    report = content(predictions, close_ups=[replace(shown, components=(taken,), reasons=(blur, haze))])
    reader = PageReader(render_report(report))
    assert reader.page.count("less fine detail") == 2
    assert [row[4] for row in reader.rows] == [
        "Reason",
        "how it was taken: less fine detail; hazier than normal",
        f"{COMPONENT_WORDS['content']}; {COMPONENT_WORDS['place']}",
    ]


@pytest.mark.parametrize(("flagged", "numbers"), [(3, ["2", "3"]), (2, [])])
def test_the_page_says_when_more_images_were_flagged_than_are_shown(flagged: int, numbers: list[str]) -> None:
    predictions = predicted(flagged, 5)
    page = render_report(content(predictions, close_ups=close_ups([each for each in predictions if each.is_ood][:2])))
    section = page.split('<h2 id="anomalous">')[1]
    (note,) = re.findall('<p class="note">(.*?)</p>', section.split('<div class="tools">')[0], flags=re.DOTALL)
    assert re.findall("[0-9]+", note) == numbers


def test_cautions_of_the_fit_stand_beside_the_guarantee() -> None:
    page = render_report(content(predicted(1, 9), cautions=("40% have <near-copies>",)))
    assert "40% have &lt;near-copies&gt;" in page.split("<main>")[0]
    assert "Caution" not in render_report(content(predicted(1, 9)))


def test_a_card_says_that_no_normal_image_has_the_shape_and_that_values_are_clipped() -> None:
    usual = scored("a.png", 2.0, p_value=0.01, is_ood=True)
    predictions = [usual, replace(usual, name="b.png", caution=UNUSUAL_SHAPE)]
    predictions.append(replace(usual, name="c.png", caution=f"{UNUSUAL_SHAPE},{OUT_OF_RANGE}"))
    page = render_report(content(predictions, close_ups=close_ups(predictions)))
    assert page.count("No normal image has this shape") == 2
    assert page.count("More values are clipped") == 1


@pytest.mark.slow
def test_a_report_with_100_cards_can_be_mailed() -> None:
    report = realistic(images=2500, explained=MAX_CARDS)
    assert len(render_report(report).encode()) < 4_000_000
    rng = np.random.default_rng(0)
    noise = [replace(each, image=rng.integers(0, 256, (256, 256, 3), dtype=np.uint8)) for each in report.close_ups]
    assert len(render_report(replace(report, close_ups=noise)).encode()) < 8_000_000, "nothing is larger than noise"


def test_thumbnails_keep_the_shape_of_the_image() -> None:
    (shown,) = close_ups(predicted(1, 0))
    wide = Thumbnail.from_explanation(replace(shown, image=np.zeros((160, 640, 3), np.uint8)))
    assert (wide.width, wide.height) == (320, 80)


def test_names_are_text_and_nothing_else() -> None:
    hostile = [
        HOSTILE,
        "</title></style></script><script>alert(1)</script>.png",
        '" onmouseover="alert(1)" x=".png',
        "' autofocus onfocus=alert(1) '.png",
        "]]><!--.png",
        "{{ content }} {% raw %} ${title} &lt;b&gt;.png",
    ]

    def report(names: list[str]) -> ReportContent:
        predictions = [scored(name, 5.0) for name in names]
        return content(
            [*predictions, *(refused(name, name) for name in names)],
            title=names[0],
            created=names[0],
            settings={name: name for name in names},
            close_ups=[replace(each, reasons=(Reason("blur", 4.0, names[0]),)) for each in close_ups(predictions)],
        )

    tame, wild = (PageReader(render_report(report(names))) for names in ([f"tame-{n}.png" for n in range(6)], hostile))
    assert [tag for tag in wild.tags if tag != "wbr"] == tame.tags
    assert {name for name, _ in wild.attributes} == {name for name, _ in tame.attributes}
    rows = [row[0] for row in wild.rows]
    assert all(rows.count(name) == 2 for name in hostile)


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(), max_size=30))
def test_any_name_can_be_written(name: str) -> None:
    page = render_report(content([scored(name, 1.0), refused(name, name)], title=name, settings={name: name}))
    reader = PageReader(page.encode("utf-8").decode("utf-8"))
    shown = re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\ufffe\uffff]", "\ufffd", name)
    assert [row[0] for row in reader.rows].count(shown) >= 2


@pytest.mark.parametrize(
    "report",
    [
        content([]),
        content([], calibration_scores=np.array([]), settings={}, threshold=float("inf")),
        content(predicted(0, 0, bad=4)),
        content(predicted(1, 1), calibration_scores=np.array([0.5]), threshold=float("inf")),
        content([scored("a.png", 1.0)] * 5, calibration_scores=np.ones(200), threshold=1.0),
        content(predicted(3, 3), threshold=-1e9),
    ],
)
def test_every_link_leads_to_a_section_however_little_there_is_to_show(report: ReportContent) -> None:
    reader = PageReader(render_report(report))
    links = {value for name, value in reader.attributes if name == "href"} - {"data:,"}  # the empty icon
    assert links <= {f"#{value}" for name, value in reader.attributes if name == "id"}


def test_the_page_fetches_nothing() -> None:
    reader = PageReader(render_report(realistic(explained=1)))
    policy = next(value for name, value in reader.attributes if name == "content" and value and "default-src" in value)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'")
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttpRequest", reader.page)


def test_the_report_is_written_whole_in_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    report = content([scored("caf\udce9 \N{SNOWMAN}.png", 1.0)])
    for _ in range(2):
        write_report(path, report)
    assert path.read_bytes().decode("utf-8") == render_report(report)
    assert "caf\ufffd \N{SNOWMAN}.png" in path.read_text(encoding="utf-8")
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
