"""The model card of a detector: what it was fitted on, what it guarantees, and what it is not for."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import discopatch
from discopatch.errors import ParameterError
from discopatch.utils import escaped

if TYPE_CHECKING:
    from discopatch.detector import Detector
    from discopatch.export.runtime import Runtime

UNKNOWN = "unknown"  # the licence, until the owner of the images chooses one
TAGS = ("discopatch", "out-of-distribution-detection", "anomaly-detection", "conformal-prediction", "image")
LONGEST = 200  # characters of a title or a licence

INTENDED = """\
## Intended use and limits

- It tells whether an image is like the normal images that it was fitted on. It does not say whether anything is right,
  safe or healthy, and it is no classifier.
- The false-alarm rate holds for images that come as the calibration images came: the same camera, preparation and kinds
  of scene, and images that are exchangeable with them. For other cameras fit a new detector.
- How many unusual images are found is not guaranteed: what is new but looks like normal images passes.
- A false-alarm rate is about normal images alone: among rare events most flagged images may still be false alarms.
- The file holds features of normal images, from which some of what they show may be inferred. Publish it only where the
  images themselves could be published.
"""


def write_card(
    detector: "Detector | Runtime", address: str, *, sha256: str, licence: str = UNKNOWN, title: str | None = None
) -> str:
    """README.md for the hub, with YAML in front; `sha256` is that of the detector's file, or of an export's metadata.

    Neither names of images nor paths are in it.
    """
    name = one_line(title or address.rstrip("/").rpartition("/")[2].partition("@")[0], "title")
    front = {
        "library_name": "discopatch",
        "license": one_line(licence, "licence"),
        "tags": list(TAGS),
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in front.items()]  # JSON is YAML, whatever stands in it
    return "\n".join(
        [
            "---",
            *lines,
            "---",
            "",
            f"# {name}",
            "",
            "A fitted detector of out-of-distribution images, made with "
            f"[discopatch](https://pypi.org/project/discopatch) {discopatch.__version__}.",
            "",
            "## What it was fitted on",
            "",
            *table(fitted_rows(detector, sha256)),
            "",
            "## Guarantee",
            "",
            detector.guarantee_.text,
            "",
            *table(guarantee_rows(detector)),
            "",
            INTENDED,
            "## How to load it",
            "",
            "```python",
            "import discopatch",
            "",
            f"detector = discopatch.load({json.dumps(address)})",
            'print(detector.predict("incoming/").is_ood)',
            "```",
            "",
            "```bash",
            f"discopatch score incoming/ --detector {address}",
            "```",
            "",
            f"It takes `pip install '{required_extras(detector)}'`.",
            "",
        ]
    )


def fitted_rows(detector: "Detector | Runtime", sha256: str) -> list[tuple[str, str]]:
    settings, guarantee = settings_of(detector), detector.guarantee_
    rows = [
        ("images", f"{guarantee.n_fit:,}"),
        ("images to calibrate", f"{guarantee.n_calibration:,}"),
        ("groups", "none" if guarantee.n_groups is None else f"{guarantee.n_groups:,}, by {settings['groups']}"),
        ("head", f"`{settings['head']}`"),
    ]
    if settings["weights"] is not None:
        rows.append(("weights", f"`{settings['weights']}`, digest `{settings['weights_digest']}`"))
    for network, digest in settings.get("networks", {}).items():
        rows.append(("network from outside", f"`{network.partition('=')[0]}`, digest `{digest}`"))
    rows += [
        ("patches", f"`{settings['patches']}`"),
        ("transform digest", f"`{settings['transform_digest']}`"),
        ("SHA-256", f"`{sha256}`"),
    ]
    return rows


def guarantee_rows(detector: "Detector | Runtime") -> list[tuple[str, str]]:
    guarantee = detector.guarantee_
    low, high = guarantee.likely_rates
    return [
        ("false-alarm rate", f"{guarantee.false_alarm_rate:g}"),
        ("calibration size", f"{guarantee.n_calibration}"),
        ("at most", f"{guarantee.alarms} in {guarantee.n_calibration + 1}, on average over such sets"),
        ("of this detector, nine times in ten", f"{low:.4f} to {high:.4f}"),
        ("threshold", f"{detector.threshold_:.6g}"),
    ]


def table(rows: Sequence[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def settings_of(detector: "Detector | Runtime") -> dict[str, Any]:
    """What results depend on, as the detector tells it or an export's metadata have it."""
    from discopatch.export.runtime import Runtime

    return dict(detector.metadata.content) if isinstance(detector, Runtime) else detector.settings()


def required_extras(detector: "Detector | Runtime") -> str:
    from discopatch.export.runtime import Runtime

    if not isinstance(detector, Runtime):
        return "discopatch[hub]"
    return f"discopatch[hub,{'openvino' if detector.metadata.graph_format == 'openvino' else 'runtime'}]"


def one_line(text: str, what: str) -> str:
    """The text without what would end its line, which must not be long."""
    if not text.strip() or len(text) > LONGEST:
        raise ParameterError(f"the {what} has {len(text)} characters: give 1 to {LONGEST}")
    return escaped(text.strip())
