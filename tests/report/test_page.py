"""The report says what is so, whatever it is told about."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discopatch.decision import Explanation
from discopatch.decision.prediction import Prediction
from discopatch.report import ReportContent, render, write_report
from discopatch.report.bins import count
from discopatch.report.table import MOST_ROWS
from discopatch.report.words import p_value_text, score_format

from .samples import HOSTILE, close_ups, content, realistic, refused, scored

VOID = {"meta", "link", "img", "input", "wbr"}
SCORES = st.floats(allow_nan=False, allow_infinity=False)


class Reading(HTMLParser):
    """A page as a strict reader sees it: its tags, in pairs, and its words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
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
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def said(report: ReportContent) -> str:
    return Reading(render(report)).text


def some(flagged: int, normal: int, *, bad: int = 0) -> list[Prediction]:
    strange = [scored(f"strange-{number}.png", 2.0 + number, p_value=0.005, is_ood=True) for number in range(flagged)]
    usual = [scored(f"usual-{number}.png", number / 100) for number in range(normal)]
    return usual + strange + [refused(f"bad-{number}.png") for number in range(bad)]


@pytest.mark.parametrize(
    ("predictions", "headline"),
    [
        (some(7, 113), "7 of 120 images are unlike the normal ones"),
        (some(1, 119), "1 of 120 images is unlike the normal ones"),
        (some(0, 1200), "None of 1,200 images is unlike the normal ones"),
        (some(12, 0), "All 12 images are unlike the normal ones"),
        (some(1, 0), "The one image is unlike the normal ones"),
        (some(0, 1), "The one image is like the normal ones"),
        (some(0, 0, bad=5), "None of 5 images could be scored"),
        (some(0, 0, bad=1), "The one image could not be scored"),
        ([], "There was no image to score"),
    ],
)
def test_the_headline_is_the_verdict(predictions: list[Prediction], headline: str) -> None:
    page = render(content(predictions))
    assert f"<h1>{headline}</h1>" in page
    assert f"<title>Camera 3: {headline}</title>" in page


def test_the_promise_is_named_with_what_it_rests_on() -> None:
    text = said(content(some(1, 9)))
    assert "at most 1 % of normal images are flagged" in text
    assert "199 normal images held out" in text


def test_a_promise_that_cannot_be_kept_names_the_remedy() -> None:
    report = content(some(0, 9), threshold=float("inf"), calibration_scores=np.zeros(12))
    assert "Too few normal images to judge 9 images" in said(report)
    assert "takes at least 99 of them held out, not 12. Add normal images or raise the rate." in said(report)
    assert totals(report) == {"scored": "9", "flagged": "0", "false": "0", "refused,": "0"}


def test_totals_count_every_image_once() -> None:
    assert totals(content(some(7, 113, bad=3))) == {"scored": "120", "flagged": "7", "false": "1.2", "refused,": "3"}


def totals(report: ReportContent) -> dict[str, str]:
    """The large numbers, each by the first of its words."""
    shown = render(report).split('<dl class="totals">')[1].split("</dl>")[0]
    return {words.split()[0]: number for words, number in re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", shown)}


def test_the_table_lists_the_strangest_first() -> None:
    rows = Reading(render(content(some(2, 3, bad=1)))).rows
    names = [row[0] for row in rows if len(row) == 4][1:]
    assert names == ["strange-1.png", "strange-0.png", "usual-2.png", "usual-1.png", "usual-0.png"]
    assert [row[3] for row in rows if len(row) == 4][1:] == ["unlike normal"] * 2 + ["like normal"] * 3


def test_a_long_table_is_cut_and_says_so() -> None:
    report = content(some(3, MOST_ROWS, bad=MOST_ROWS + 1))
    reading = Reading(render(report))
    rows = [row[0] for row in reading.rows]
    assert sum(name.startswith(("usual", "strange")) for name in rows) == MOST_ROWS
    assert sum(name.startswith("bad") for name in rows) == MOST_ROWS
    assert "usual-0.png" not in rows, "the least strange is left out"
    assert "The 2,000 strangest of 2,003 images" in reading.text
    assert "Only the first 2,000 are listed; 1 more follow" in reading.text


def test_refused_files_are_listed_with_their_reasons() -> None:
    rows = Reading(render(content([refused("a.png"), refused("b.png", "empty: no <bytes>")]))).rows
    assert ["a.png", "truncated: the file ends early"] in rows
    assert ["b.png", "empty: no <bytes>"] in rows


def test_settings_and_time_are_shown() -> None:
    text = said(content([], settings={"weights": "6f1c & <more>"}))
    assert "weights6f1c & <more>" in text
    assert "2025-03-14 09:26 UTC" in text
    assert "yesterday, <late>" in said(content([], created="yesterday, <late>"))


@pytest.mark.parametrize(
    ("p_value", "normal", "text"),
    [
        (1 / 200, 199, "≤ 0.005"),
        (1 / 201, 200, "≤ 0.005"),
        (1 / 120, 119, "≤ 0.0084"),
        (2 / 200, 199, "0.01"),
        (0.0101, 199, "0.011"),
        (0.07, 199, "0.07"),
        (0.421, 199, "0.43"),
        (0.999, 199, "1"),
        (1.0, 199, "1"),
        (1.0, 0, "≤ 1"),
        (1 / 1_000_001, 1_000_000, "≤ 0.000001"),
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


def test_scores_have_the_decimals_that_tell_them_apart() -> None:
    assert score_format(np.linspace(0, 1, 100))(0.123456) == "0.123"
    assert score_format(np.linspace(0, 1e-4, 100))(0.000123456) == "0.0001235"
    assert score_format(np.linspace(0, 1e4, 100))(-1234.5678) == "-1235"
    assert score_format(np.linspace(0, 1, 100))(-1e-9) == "0.000"
    assert score_format(np.ones(5))(1.0) == "1.00"
    assert score_format(np.array([]))(123456789012.0) == "1.23457e+11"


def test_close_ups_show_picture_heat_numbers_and_reasons() -> None:
    predictions = some(3, 0)
    reading = Reading(render(content(predictions, close_ups=close_ups(predictions))))
    images = [value for name, value in reading.attributes if name == "src"]
    assert len(images) == 6
    assert all(value and value.startswith("data:image/webp;base64,") for value in images)
    assert "strange-0.png" in reading.text
    assert "less fine detail than normal" in reading.text


def test_a_report_with_24_close_ups_can_be_mailed() -> None:
    report = realistic(images=2500, looked_at=24)
    assert len(render(report).encode()) < 1_000_000
    rng = np.random.default_rng(0)
    noise = [
        Explanation(each.prediction, rng.integers(0, 256, (256, 256, 3), dtype=np.uint8), each.heat, each.reasons)
        for each in report.close_ups
    ]
    assert len(render(replace(report, close_ups=noise)).encode()) < 2_000_000, "nothing is larger than noise"


def test_large_pictures_are_made_small() -> None:
    prediction = scored("large.png", 1.0)
    large = Explanation(prediction, np.zeros((3000, 1500, 3), np.uint8), np.ones((4, 4), np.float32), ())
    assert 'width="160" height="320"' in render(content([prediction], close_ups=[large]))


def test_names_are_text_and_nothing_else() -> None:
    hostile = [
        HOSTILE,
        "</title></style></script><script>alert(1)</script>.png",
        '" onmouseover="alert(1)" x=".png',
        "' autofocus onfocus=alert(1) '.png",
        "]]><!--.png",
        "$policy ${title} &lt;b&gt;.png",
    ]

    def report(names: list[str]) -> ReportContent:
        predictions = [scored(name, 5.0) for name in names]
        return content(
            [*predictions, *(refused(name, name) for name in names)],
            title=names[0],
            created=names[0],
            settings={name: name for name in names},
            close_ups=[replace(each, reasons=(names[0],)) for each in close_ups(predictions)],
        )

    tame, wild = (Reading(render(report(names))) for names in ([f"tame-{n}.png" for n in range(6)], hostile))
    assert [tag for tag in wild.tags if tag != "wbr"] == tame.tags
    assert {name for name, _ in wild.attributes} == {name for name, _ in tame.attributes}
    rows = [row[0] for row in wild.rows]
    assert all(rows.count(name) == 2 for name in hostile)


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(), max_size=30))
def test_any_name_can_be_written(name: str) -> None:
    page = render(content([scored(name, 1.0), refused(name, name)], title=name, settings={name: name}))
    reading = Reading(page.encode("utf-8").decode("utf-8"))
    shown = re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\ufffe\uffff]", "\ufffd", name)
    assert [row[0] for row in reading.rows].count(shown) >= 2


@settings(max_examples=100, deadline=None)
@given(st.lists(SCORES, max_size=8), st.lists(SCORES, max_size=8), st.floats(allow_nan=False))
def test_any_scores_can_be_drawn(calibration: list[float], scores: list[float], threshold: float) -> None:
    predictions = [scored("a.png", score, is_ood=score > threshold) for score in scores]
    page = render(content(predictions, calibration_scores=np.array(calibration), threshold=threshold))
    assert "nan" not in re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    for drawing in drawings(page):
        for number in re.findall(r' (?:x|y|width|height)="([^"]*)"', ElementTree.tostring(drawing, encoding="unicode")):
            assert -1 <= float(number) <= 1000


def drawings(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(SCORES, max_size=20), st.lists(SCORES, max_size=20), st.floats(allow_nan=False), st.sampled_from([12, 53])
)
def test_every_image_is_in_one_bin(normal: list[float], new: list[float], threshold: float, wanted: int) -> None:
    bins = count(np.array(normal), np.array(new), threshold, bins=wanted)
    assert (np.diff(bins.edges) > 0).all()
    assert len(bins.edges) <= wanted + 4
    assert (bins.calibration.sum(), bins.scored.sum()) == (len(normal), len(new))
    if bins.threshold is not None and abs(threshold) < 1e100:
        place = int(np.flatnonzero(bins.edges == threshold)[0])
        assert bins.scored[place + 1 :].sum() == sum(score > threshold for score in new), "no bin is half flagged"


def test_nothing_is_off_the_axis_without_outliers() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        normal, new, threshold = rng.uniform(size=50), rng.uniform(0.1, 1.2, 20), rng.uniform()
        bins = count(normal, new, threshold, bins=int(rng.integers(12, 60)))
        assert [bins.calibration[0], bins.calibration[-1], bins.scored[0], bins.scored[-1]] == [0, 0, 0, 0]
        assert bins.threshold == threshold


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e300])
def test_outliers_do_not_squeeze_the_bulk(scale: float) -> None:
    rng = np.random.default_rng(0)
    normal, new = rng.normal(size=500), np.append(rng.normal(size=100), [scale, 2 * scale, -scale])
    report = content([scored(f"{score}", score) for score in new], calibration_scores=normal, threshold=2.3)
    bins = count(normal, new, 2.3, bins=50)
    assert (bins.scored[0], bins.scored[-1]) == (1, 2)
    assert np.count_nonzero(bins.calibration) > 15
    for drawing in drawings(render(report)):
        words = ["".join(text.itertext()) for text in drawing.iter("text")]
        assert "and 1 below, 2 beyond" in words
        assert "threshold 2.30" in words


def test_the_histogram_is_drawn_for_wide_and_narrow_pages_and_can_be_read_aloud() -> None:
    wide, narrow = drawings(render(content(some(7, 113))))
    for drawing in (wide, narrow):
        ids = {each.get("id"): each.text for each in drawing if each.tag in ("title", "desc")}
        labels = drawing.attrib["aria-labelledby"].split()
        assert list(ids) == labels
        assert "199 normal images held out" in (ids[labels[1]] or "")
        bars = [
            int(each[0].text.split(": ")[1].split()[0]) for each in drawing.iter("rect") if len(each) and each[0].text
        ]
        assert sum(bars) == 199 + 120
    assert not set(wide.attrib["aria-labelledby"].split()) & set(narrow.attrib["aria-labelledby"].split())


@pytest.mark.parametrize(
    "report",
    [
        content([]),
        content([], calibration_scores=np.array([]), settings={}, threshold=float("inf")),
        content(some(0, 0, bad=4)),
        content(some(0, 20)),
        content(some(1, 1), calibration_scores=np.array([0.5]), threshold=float("inf")),
        content([scored("a.png", 1.0)] * 5, calibration_scores=np.ones(200), threshold=1.0),
        content([scored("a.png", 0.0)] * 5, calibration_scores=np.zeros(200), threshold=0.0),
        content(some(0, 3), calibration_scores=np.append(np.linspace(0, 1, 98), 1000), threshold=1000.0),
        content(some(3, 3), threshold=-1e9),
    ],
)
def test_nothing_to_show_is_shown_as_such(report: ReportContent) -> None:
    reading = Reading(render(report))
    assert all(value and value[1:] in dict_of_ids(reading) for name, value in reading.attributes if name == "href")


def dict_of_ids(reading: Reading) -> set[str]:
    """What links may point to; the empty icon points to nothing."""
    return {value for name, value in reading.attributes if name == "id" and value} | {"ata:,"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: content([scored("a.png", float("nan"))]), "'a.png' has the score nan: scores must be finite"),
        (lambda: content([scored("a.png", float("inf"))]), "'a.png' has the score inf"),
        (lambda: content([scored("a.png", 1.0, p_value=float("nan"))]), "'a.png' has the p-value nan"),
        (lambda: content([scored("a.png", 1.0, p_value=1.5)]), "between 0 and 1"),
        (lambda: content([Prediction("a.png", 1.0, None, None)]), "calibrated detector"),
        (lambda: content([], threshold=float("nan")), "threshold nan"),
        (lambda: content([], calibration_scores=np.array([1.0, np.nan])), "calibration_scores must be finite"),
        (lambda: content([], calibration_scores=np.ones((2, 2))), "of shape \\(n,\\)"),
        (lambda: content([], false_alarm_rate=0.0), "false_alarm_rate 0.0"),
        (lambda: content([], false_alarm_rate=float("nan")), "false_alarm_rate nan"),
        (lambda: content([], close_ups=close_ups([refused("a.png")])), "'a.png' was refused"),
    ],
)
def test_what_is_no_number_is_refused_by_name(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_prediction_has_a_score_or_an_error() -> None:
    with pytest.raises(ValueError, match="either a score or an error"):
        Prediction("a.png", None, None, None)
    with pytest.raises(ValueError, match="either a score or an error"):
        Prediction("a.png", 1.0, None, None, "empty")
    with pytest.raises(ValueError, match="no p-value and no verdict"):
        Prediction("a.png", None, 0.5, False, "empty")


def test_scores_of_numpy_are_scores() -> None:
    prediction = Prediction("a.png", np.float64(1.5), np.float32(0.25), np.bool_(True))  # type: ignore[arg-type]
    page = render(content([prediction]))
    assert 'data-value="1.5"' in page
    assert 'data-value="0.25"' in page
    assert "unlike<span> normal" in page


def test_the_page_asks_nothing_of_the_network() -> None:
    page = render(realistic(looked_at=1))
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}' in page
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttpRequest", page)


def test_the_same_content_gives_the_same_page() -> None:
    assert render(realistic(looked_at=2)) == render(realistic(looked_at=2))


def test_the_report_is_written_whole_in_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    report = content([scored("caf\udce9 \N{SNOWMAN}.png", 1.0)])
    for _ in range(2):
        write_report(path, report)
    assert path.read_bytes().decode("utf-8") == render(report)
    assert "caf\ufffd \N{SNOWMAN}.png" in path.read_text(encoding="utf-8")
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
