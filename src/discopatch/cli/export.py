"""discopatch export"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli import options

OUT = "Folder to write. Default: beside the detector, or here for one of the hub."
INT8 = "Convolutions in 8 bits: faster and less exact. Needs --reference."
FAST_DECODE = "Decode large JPEG files scaled down, which is faster. Needs --calibration, unless fitted so."
REFERENCE = "Images to compare on, preferably new normal images. Default: synthetic images."
CALIBRATION = "New normal images to calibrate on, so that --int8 and --fast-decode keep the false-alarm rate."


def export(
    detector: Annotated[str, typer.Argument(help="Detector that `discopatch fit` wrote, or hf://owner/name.")],
    format: Annotated[str, typer.Option(help="Format of the export: onnx or openvino.")] = "onnx",
    out: Annotated[Path | None, typer.Option("--out", "-o", help=OUT)] = None,
    int8: Annotated[bool, typer.Option("--int8", help=INT8)] = False,
    fast_decode: Annotated[bool, typer.Option("--fast-decode", help=FAST_DECODE)] = False,
    reference: Annotated[str | None, typer.Option(help=REFERENCE)] = None,
    calibration: Annotated[str | None, typer.Option(help=CALIBRATION)] = None,
    workers: options.ReadBy = None,
    max_pixels: options.MaxPixels = None,
    force: options.Force = False,
) -> None:
    """Export a detector to ONNX or OpenVINO, for use without torch, if the export agrees with the detector."""
    located = options.detector_of(detector)
    place = Path(detector) if located.address is None else Path(located.name)
    folder = out or place.with_name(f"{place.name.removesuffix('.safetensors')}-{format}{'-int8' * int8}")
    options.check_new(folder, force=force)

    from rich.console import Console

    from discopatch.detector import Detector
    from discopatch.export import export_detector

    console = Console(stderr=True)
    with options.progress_bar(console, "reading the detector") as bar:
        limits = options.limits_of(max_pixels)
        exported = export_detector(
            Detector.load(located.path, device="cpu", decoder="scaled" if fast_decode else None, **limits),
            folder,
            format=format,
            int8=int8,
            reference=reference,
            calibration=calibration,
            workers=options.readers_of(workers),
            force=force,
            progress=bar.describe,
        )
    if exported.caution is not None:
        options.notice(console, exported.caution, "yellow")
    options.notice(console, f"{folder}: {exported.parity.text}")
