"""discopatch fit"""

import warnings
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discopatch.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from discopatch.calibration import Rate
    from discopatch.detector import Detector
    from discopatch.fitting import Resolution
    from discopatch.images import Transform, Workers
    from discopatch.images.levels import Choice
    from discopatch.resolution import ResolutionStep

RATE = (
    "Largest share of normal images that are flagged, on average; auto takes the smallest of 0.01, 0.02, 0.05 and 0.1 "
    "for which at most half of IMAGES are held out."
)
CONFIDENCE = "Such as 0.95: the rate holds for 95 of 100 detectors fitted like this one, instead of on average."
GROUPS = (
    "Which images belong together, such as frames of a burst: images of one folder, images whose names differ only in "
    "the trailing number, or near-copies that are found. The rate then holds for new groups."
)
CLASSES = "Images of each folder are of one kind, such as one product. The rate then holds for each of them."
WEIGHTS = (
    f"{options.WEIGHTS} Or a network of transformers, KIND=FOLDER, such as dinov2=FOLDER. "
    f"Several times for several networks at once. {options.DEFAULT_WEIGHTS_TEXT}"
)
UPDATE = (
    "Add IMAGES to what this detector remembers, and calibrate it on a part of them: for a new season or batch. Only "
    "--groups, --device, --batch-size, --workers and --max-pixels apply."
)
CALIBRATION = "Other normal images to calibrate on, instead of a part of IMAGES."
EXAMPLES = "Images of defects that were not found; what they have in common counts more. The rate stays."
PATCHES = "Patches of each image: a number, or dense for the whole image in one pass."
RESOLUTION = (
    "Pixels along the short side of the whole image, as the networks see it; auto takes 256, or up to 1024 where more "
    "small made-up changes are found. crop sees the centre square."
)
LEVELS = (
    "Values of images of more than 8 bits that become black and white: auto chooses them by IMAGES, window takes the "
    "window of each DICOM file."
)
BANDS = "The band that becomes grey, or the three that become red, green and blue, such as 4,3,2. Default: the first."
IGNORE = "Mask: an image of the shape of IMAGES, white where their pixels are ignored."
EXCLUDE = "Text file with names of IMAGES to leave out, one a line, as `discopatch audit --exclude-list` writes it."
REASONS = "Normal images from which reasons are learnt; 0 leaves reasons out."
DETECTION = "Held-out images on which each made-up change is tried to measure detection rates; 0 leaves them out."
PRECISION = "float32, or bfloat16, which is faster; the detector then needs a GPU."


def rate_of(text: str) -> "Rate":
    """`auto`, or the number; its range is checked by the detector."""
    return "auto" if text == "auto" else float(text)


def resolution_of(text: str) -> "Resolution":
    """`auto`, `crop`, or the number; its range is checked by the detector."""
    if text not in ("auto", "crop") and not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither auto, crop nor a number of pixels")
    return int(text) if text.isdecimal() else text  # type: ignore[return-value]


def levels_of(text: str) -> "Choice":
    """`auto`, `window`, or the two numbers; they are checked by the detector."""
    return text if text in ("auto", "window") else tuple(map(float, text.split(":")))  # type: ignore[return-value]


def bands_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def seen_text(transform: "Transform") -> str:
    """What the networks see of an image, in words."""
    height, width = transform.largest
    seen = {"whole": "the whole image", "crop": "the centre square", "squash": "the image as a square"}[transform.fit]
    return f"sees {seen} at {width} x {height} pixels"


def tried_text(steps: "Sequence[ResolutionStep]") -> str:
    """What was found at each resolution that was tried, in one line; empty where none was."""
    if not steps:
        return ""
    tried = "; ".join(f"{each.text}{' (chosen)' * each.chosen}" for each in steps)
    return f"small made-up changes above normal images: {tried}. Set another one with --resolution"


def fit(
    images: Annotated[list[str], typer.Argument(help=f"Normal images. {options.IMAGES}")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the fitted detector to.")],
    update: Annotated[Path | None, typer.Option(metavar="DETECTOR", help=UPDATE)] = None,
    false_alarm_rate: Annotated[Any, typer.Option(parser=rate_of, metavar="FLOAT|auto", help=RATE)] = "auto",
    confidence: Annotated[float | None, typer.Option(help=CONFIDENCE)] = None,
    groups: Annotated[str | None, typer.Option(metavar="folder|name|auto", help=GROUPS)] = None,
    classes: Annotated[str | None, typer.Option(metavar="folder", help=CLASSES)] = None,
    calibration: Annotated[str | None, typer.Option(help=CALIBRATION)] = None,
    examples: Annotated[str | None, typer.Option(help=EXAMPLES)] = None,
    head: Annotated[str | None, typer.Option(help=options.HEAD)] = None,
    weights: Annotated[list[str] | None, typer.Option(help=WEIGHTS)] = None,
    patches: Annotated[Any, typer.Option(parser=options.patches_of, metavar="INT|dense", help=PATCHES)] = "dense",
    resolution: Annotated[Any, typer.Option(parser=resolution_of, metavar="auto|INT|crop", help=RESOLUTION)] = "auto",
    ignore: Annotated[Path | None, typer.Option(metavar="PNG", help=IGNORE)] = None,
    levels: Annotated[Any, typer.Option(parser=levels_of, metavar="auto|window|LOW:HIGH", help=LEVELS)] = "auto",
    bands: Annotated[Any, typer.Option(parser=bands_of, metavar="INT[,INT,INT]", help=BANDS)] = None,
    exclude: Annotated[Path | None, typer.Option(metavar="TXT", help=EXCLUDE)] = None,
    seed: Annotated[int, typer.Option(help=options.SEED)] = 0,
    reason_images: Annotated[int, typer.Option(help=REASONS, min=0)] = 16,
    detection_images: Annotated[int, typer.Option(help=DETECTION, min=0)] = 12,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    precision: Annotated[str, typer.Option(help=PRECISION)] = "float32",
    decoder: Annotated[str, typer.Option(help=options.DECODER)] = "pillow",
    workers: options.ReadBy = None,
    max_pixels: options.MaxPixels = None,
    force: options.Force = False,
) -> None:
    """Fit a detector on normal images. No labels, no training and no anomalous examples are needed."""
    options.check_new(out, force=force)
    reading = options.readers_of(workers)

    from rich.console import Console

    from discopatch.detector import Detector
    from discopatch.errors import NormalImagesWarning
    from discopatch.pretrained import DEFAULT_WEIGHTS
    from discopatch.utils import check_output, counted

    check_output(out)
    console = Console(stderr=True)
    left_out = [] if exclude is None else exclude.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    left_out = list(filter(None, left_out))
    if update is not None:
        load = {"device": device, "batch_size": batch_size, **options.limits_of(max_pixels)}
        if classes is not None:
            raise typer.BadParameter("--classes is for a new fit: leave out --update")
        update_detector(console, update, images, out, groups=groups, reading=reading, **load)
        return
    detector = Detector(
        weights or DEFAULT_WEIGHTS,
        false_alarm_rate=false_alarm_rate,
        confidence=confidence,
        patches=patches,
        resolution=resolution,
        levels=levels,
        bands=bands,
        seed=seed,
        reason_images=reason_images,
        detection_images=detection_images,
        device=device,
        batch_size=batch_size,
        precision=precision,  # type: ignore[arg-type]  # checked by fit
        decoder=decoder,  # type: ignore[arg-type]  # checked by fit
        **({} if head is None else {"head": head}),  # type: ignore[arg-type]  # checked by fit
        **options.limits_of(max_pixels),
    )
    first = "choosing the resolution" if resolution == "auto" else "reading normal images"
    with options.progress_bar(console, first) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", NormalImagesWarning)  # printed below
        source = options.source_of(images)
        given = {
            "groups": groups,
            "classes": classes,
            "calibration": calibration,
            "examples": examples,
            "ignore": ignore,
        }
        parts: dict[str, Any] = {**given, "exclude": left_out}
        detector.fit(source, **parts, workers=reading, progress=bar.follow_fit)
    detector.save(out)
    if left_out:
        options.notice(console, f"{counted(len(left_out), 'image')} left out, which {exclude} names")
    print_fit(console, detector, out)


def update_detector(
    console: "Console", old: Path, images: list[str], out: Path, *, groups: Any, reading: "Workers", **load: Any
) -> None:
    """Writes the detector in the file `old`, to which these images are normal too."""
    from discopatch.detector import Detector
    from discopatch.errors import NormalImagesWarning

    with options.progress_bar(console, "reading new normal images") as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", NormalImagesWarning)  # printed below
        source, loaded = options.source_of(images), Detector.load(old, **load)
        updated = loaded.update(source, groups=groups, workers=reading, progress=bar.follow_fit)
    updated.save(out)
    print_fit(console, updated, out)


def print_fit(console: "Console", detector: "Detector", out: Path) -> None:
    """Prints what the detector sees and promises."""
    from discopatch.fitting import MIN_FIT_IMAGES

    if detector.refusals_:
        options.notice(console, detector.refusals_.summary(), "yellow")
    for caution in detector.cautions_:
        options.notice(console, f"caution: {caution}", "yellow")
    options.notice(console, seen_text(detector.transform_))
    if (mapping := detector.transform_.levels) is not None:
        options.notice(console, mapping.text)
    if tried := tried_text(detector.state_.fitted.resolutions):
        options.notice(console, tried)
    options.notice(console, f"{out}: {detector.guarantee_.text}")
    if detector.classes_:
        print_classes(console, detector)
    if detector.detection_rates_:
        options.notice(console, "finds, of made-up changes of held-out images (95 % intervals in brackets):")
    for kind, rates in groupby(detector.detection_rates_, lambda rate: rate.kind):
        options.notice(console, f"  {kind}: " + ", ".join(f"{rate.size} {rate.text}" for rate in rates))
    is_auto = detector.false_alarm_rate == "auto" and detector.confidence is None
    if is_auto and (text := detector.guarantee_.next_rate_text(min_fit=MIN_FIT_IMAGES)):
        options.notice(console, text)


def print_classes(console: "Console", detector: "Detector") -> None:
    """Prints how many images each class has, and the largest expected share of flagged ones."""
    from rich.table import Table
    from rich.text import Text

    from discopatch.utils import escaped

    table = Table("class", "fitted", "calibrating", "flagged at most", box=None)
    for name, each in detector.guarantee_.classes.items():
        table.add_row(Text(escaped(name)), str(each.n_fit), str(each.n_calibration), f"{each.bound:.1%}")
    console.print(table)
