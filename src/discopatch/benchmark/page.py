"""docs/results.md, written from the stored figures alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]

HEADS = {
    "combined": "combined",
    "statistics": "statistics",
    "logit": "logit",
    "paper": "logit of 64 random patches",
}
SUITES = {"solar": "Solar cells", "natural": "Photos"}
TEXTURE = "photos-227px"

INTRO = """# Results

How well scores tell normal images from others, and whether the promised false alarms come true. Figures are AUROC: the chance that an
image of the other kind scores higher than a normal one, 1 at best, 0.5 for a guess. The range after each is its bootstrap 95 % interval over
test images. Everything is made by two commands:

```
python benchmarks/results.py measure --natural FOLDER --ood FOLDER   # docs/results.json
python benchmarks/results.py page                                    # this page
```

Four scores stand side by side, all from the same frozen discriminator: **combined**, the default; **statistics**, the distance of
the layers' statistics from those of normal images; **logit**, the paper's score in one dense pass; and the paper's own way, the
mean logit of 64 random patches."""

LIMITS = """## What the figures do not say

- Intervals are over test images only. Another draw of the images to fit on, or another training of the discriminator,
  would move the figures by more than they say.
- A control far from 0.5 means that the detector sees how images were stored and resized. Such a row is worth what its
  route-matched column says.
- Corruptions that resemble a defect of the training are shown apart from the others; only the latter are a test of the unknown.
- The false alarms are of random splits of one set of images. A camera that drifts breaks the promise, whatever these tables say.
- Saturation does nothing to grey images, so that solar cells are at 0.5 there, and their means carry that.
- The corruptions are our own, seeded versions of those of ImageNet-C; compare them with each other, not with published tables."""


def render(report: Report) -> str:
    """The whole page; sections that were not measured are left out."""
    sections = [INTRO, glance(report)]
    for suite, title in SUITES.items():
        if suite in report:
            sections += corruptions(title, report, suite)
    if "out of distribution" in report:
        sections += other_images(report["out of distribution"])
    if "storage" in report:
        sections.append(storage(report))
    if "false alarms" in report:
        sections.append(false_alarms(report["false alarms"]))
    if "fit size" in report:
        sections.append(fit_size(report["fit size"]["solar"]))
    return "\n\n".join([*sections, LIMITS, made(report)]) + "\n"


def glance(report: Report) -> str:
    """The means, a row for each head."""
    columns: dict[str, Report] = {}
    for suite, title in SUITES.items():
        if suite in report:
            means = report[suite]["common means"]
            columns[f"{title}, corrupted"] = {head: means[head].get("all 19") for head in means}
    if "out of distribution" in report:
        columns["Other images than photos"] = report["out of distribution"]["means"]["auroc"]
        columns["the same, route-matched"] = report["out of distribution"]["means"]["matched"]
    rows = [[name, *(figure(found.get(head)) for found in columns.values())] for head, name in HEADS.items()]
    note = "Corrupted images at the severities that all four scores have; the mean over corruptions."
    return f"## At a glance\n\n{table(['score', *columns], rows)}\n\n{note}"


def corruptions(title: str, report: Report, suite: str) -> list[str]:
    """Means of groups by head, then every cell of the combined head."""
    found = report[suite]
    images = found["images"]
    intro = (
        f"## {title}, corrupted\n\nFitted on {images['fit']:,} images (and {images['calibration']} to calibrate), tested on "
        f"{images['test']} clean ones and the same under {len(found['cells']['combined'])} corruptions."
    )
    severities = list(found["severity means"]["combined"])
    common = ", ".join(map(str, found["common severities"]))
    return [
        intro,
        f"Mean over all severities ({', '.join(severities)}):\n\n{groups(found['means'], found['severity 0'])}",
        f"Mean over severities {common}, with the paper's own way:\n\n{groups(found['common means'], found['severity 0'])}",
        f"Each corruption, combined score:\n\n{cells(found, severities)}",
    ]


def groups(means: Mapping[str, Report], control: Report) -> str:
    """A row for each group, a column for each head; the control comes last."""
    heads = [head for head in HEADS if head in means]
    names = list(means[heads[0]])
    rows = [[name, *(figure(means[head][name]) for head in heads)] for name in names]
    rows.append(["*severity 0, the control*", *(figure(control.get(head)) for head in heads)])
    return table(["mean over", *(HEADS[head] for head in heads)], rows)


def cells(found: Report, severities: Sequence[str]) -> str:
    """A row for each corruption, a column for each severity."""
    rows = [
        [name.replace("_", " "), *(figure(levels.get(severity)) for severity in severities)]
        for name, levels in found["cells"]["combined"].items()
    ]
    rows.append(["**mean**", *(figure(found["severity means"]["combined"][severity]) for severity in severities)])
    return table(["corruption", *severities], rows)


def other_images(found: Report) -> list[str]:
    """The combined head in detail, then all heads."""
    intro = (
        "## Other images than photos\n\nAgainst the test photos. *Control*: the test photos along the set's own route (its "
        "sizes and file formats) against themselves; 0.5 if the detector does not see the route. *Route-matched*: the set "
        f"against the test photos along its route. {TEXTURE} are photos: a control themselves."
    )
    columns = {"auroc": "AUROC", "control": "control", "matched": "route-matched"}
    rows = [
        [name, str(each["images"]), route(each["route"]), *(figure(each[view]["combined"]) for view in columns)]
        for name, each in found["sets"].items()
    ]
    rows.append(["**mean**", "", "", *(figure(found["means"][view]["combined"]) for view in columns)])
    detail = table(["set", "images", "route", *columns.values()], rows)
    return [
        intro,
        f"Combined score:\n\n{detail}",
        f"All scores, AUROC:\n\n{by_head(found, 'auroc')}",
        f"All scores, route-matched:\n\n{by_head(found, 'matched')}",
        f"All scores, control:\n\n{by_head(found, 'control')}",
    ]


def by_head(found: Report, view: str) -> str:
    """A row for each set, a column for each head."""
    rows = [[name, *(figure(each[view].get(head)) for head in HEADS)] for name, each in found["sets"].items()]
    rows.append(["**mean**", *(figure(found["means"][view].get(head)) for head in HEADS)])
    return table(["set", *HEADS.values()], rows)


def route(found: Report) -> str:
    """Such as 200, 416 px, JPEG 75."""
    sizes = [", ".join(map(str, found["sizes"])) + " px"] if found["sizes"] else ["own size"]
    qualities = found["jpeg qualities"]
    if qualities:
        sizes.append(f"JPEG {qualities[0]}" + (f" to {qualities[-1]}" if len(qualities) > 1 else ""))
    if found["without loss"]:
        sizes.append("PNG")
    return ", ".join(sizes)


def storage(report: Report) -> str:
    """What the storage of the photos to fit on does alone."""
    found, quality = report["storage"], report["plan"]["natural_storage"]["quality"]
    stored = "not stored once more" if quality is None else f"JPEG of quality {quality}"
    bare = report.get("out of distribution", {}).get("means", {}).get("as they come", {})
    rows = [
        [name, figure(found["as they come"].get(head)), figure(found["calibration"].get(head)), figure(bare.get(head))]
        for head, name in HEADS.items()
    ]
    headings = ["score", "test photos as they come", "photos of the training", "other images, nothing stored alike"]
    text = (
        "The photos to fit on lie at 256 pixels in files of their own, and the discriminator was trained on such files. In "
        f"the tables above every image ends its way in the same storage ({stored}). Without that, this happens: the "
        "test photos as they come against the same photos so stored (0.5: no difference; 1: taken for strange); photos that the "
        "discriminator was trained on, but the head not fitted on, against the test photos, stored alike; and the mean over other "
        "kinds of images when neither they nor the test photos are so stored."
    )
    return f"## What storage alone does\n\n{text}\n\n{table(headings, rows)}"


def false_alarms(found: Report) -> str:
    """Promised and found, a row for each suite, head and rate."""
    rows = []
    for suite, heads in found.items():
        for head in (name for name in HEADS if name in heads):
            rows += [alarm_row(SUITES[suite], HEADS[head], each) for each in heads[head].values()]
    headings = [
        "images",
        "score",
        "promised",
        "found, pooled",
        "99 % range",
        "binomial alone",
        "splits",
        "within range",
    ]
    text = (
        "Random splits of normal images. *Found* is the share of test images that were flagged, over all splits. The 99 % "
        "range is where that share lies when the promise holds, given that each threshold rests on few calibration images; "
        "*binomial alone* takes the threshold for exact, and is too narrow. The last columns give each split's share, and how "
        "many splits lie within the 99 % range of a single one."
    )
    return f"## False alarms\n\n{text}\n\n{table(headings, rows)}"


def alarm_row(suite: str, head: str, found: Report) -> list[str]:
    """One promise."""
    low, high = found["conformal"]
    return [
        suite,
        head,
        percent(found["promised"]),
        f"**{percent(found['pooled'])}**",
        span(found["pooled_conformal"]),
        span(found["pooled_binomial"]),
        " ".join(f"{100 * rate:.1f}" for rate in found["rates"]),
        f"{found['splits_within']} of {len(found['rates'])} ({percent(low)} to {percent(high)})",
    ]


def fit_size(found: Report) -> str:
    """Mean AUROC by the number of images given."""
    heads = [head for head in HEADS if all(head in each for each in found["sizes"].values())]
    rows = [
        [size, str(each["fitted"]), *(figure(each[head]) for head in heads)] for size, each in found["sizes"].items()
    ]
    text = (
        f"Solar cells, mean over corruptions at severity {found['severity']} on {found['test']} test images, by how many normal "
        "images `fit` was given; a part of them is held out to calibrate a false-alarm rate of 10 %."
    )
    return f"## How many images it takes\n\n{text}\n\n{table(['images', 'fitted', *(HEADS[head] for head in heads)], rows)}"


def made(report: Report) -> str:
    """On what, from what, with what."""
    made, data = report["made"], report["data"]
    text = (
        f"discopatch {made['discopatch']}, weights {made['weights']} (`{made['weights digest']}`), transform "
        f"`{made['transform digest']}`, seed {made['seed']}; {made['device']}, Python {made['python']}, torch {made['torch']}, "
        f"numpy {made['numpy']}, Pillow {made['pillow']}; {made.get('seconds', 0)} seconds. Digests of names and pixels:"
    )
    rows = [[name, f"{each['images']:,}", f"`{each['digest']}`"] for name, each in data.items()]
    return f"## How it was made\n\n{text}\n\n{table(['set', 'images', 'digest'], rows)}"


def table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    first = list(headings)
    lines = [first, ["---"] * len(first), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(found: Sequence[float] | None) -> str:
    """0.962 [0.955, 0.969]."""
    return "" if found is None else f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


def percent(share: float) -> str:
    """1.0 %."""
    return f"{100 * share:.1f} %"


def span(shares: Sequence[float]) -> str:
    """0.6 to 1.5 %."""
    return f"{100 * shares[0]:.1f} to {100 * shares[1]:.1f} %"
