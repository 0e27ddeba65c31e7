"""discopatch export"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli import options


def export(
    detector: Annotated[str, typer.Argument(help="Detector that `discopatch fit` wrote, or hf://owner/name.")],
    format: Annotated[str, typer.Option(help="Format of the export: onnx or openvino.")] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write. Default: beside the detector, or here for one of the hub."),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Convolutions in 8 bits: faster and less exact. Needs --reference.")
    ] = False,
    reference: Annotated[
        str | None, typer.Option(help="Images to compare on, preferably new normal images. Default: synthetic images.")
    ] = None,
    calibration: Annotated[
        str | None, typer.Option(help="New normal images to calibrate on, so that --int8 keeps the false-alarm rate.")
    ] = None,
    workers: options.ReadBy = None,
    max_pixels: options.MaxPixels = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing export.")] = False,
) -> None:
    """Export a detector to ONNX or OpenVINO, for use without torch, if the export agrees with the detector."""
    limits = options.limits_of(max_pixels)
    located = options.detector_of(detector)
    place = Path(detector) if located.address is None else Path(located.name)
    folder = out or place.with_name(f"{place.name.removesuffix('.safetensors')}-{format}{'-int8' * int8}")
    if folder.exists() and not force:
        raise typer.BadParameter(f"{folder} exists: choose another --out, or add --force")

    from rich.console import Console
    from rich.text import Text

    from discopatch.detector import Detector
    from discopatch.export import export_detector
    from discopatch.utils import escaped

    console = Console(stderr=True)
    with options.progress_bar(console, "reading the detector") as bar:
        exported = export_detector(
            Detector.load(located.path, device="cpu", **limits),
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
        console.print(Text(exported.caution, style="yellow"), soft_wrap=True)
    console.print(Text(escaped(f"{folder}: {exported.parity.text}")), soft_wrap=True)
