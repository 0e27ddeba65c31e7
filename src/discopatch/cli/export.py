"""discopatch export"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli import options


def export(
    detector: Annotated[
        str, typer.Argument(help="Detector that `discopatch fit` wrote, or hf://owner/name of the Hugging Face hub.")
    ],
    format: Annotated[str, typer.Option(help="Format of the graph: onnx, openvino or torch-export.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder to write; default: beside the detector, or here for one of the hub.",
        ),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Compute convolutions in 8 bits: faster, less exact; needs --reference.")
    ] = False,
    reference: Annotated[
        str | None, typer.Option(help="Images to compare on, ideally normal ones that are new to the detector.")
    ] = None,
    calibration: Annotated[
        str | None, typer.Option(help="New normal images to calibrate on: then --int8 keeps the false-alarm guarantee.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Number of threads that decode images.", min=1)] = None,
    max_pixels: options.MaxPixels = None,
    max_bytes: options.MaxBytes = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing export.")] = False,
) -> None:
    """Export a detector as a graph for other runtimes, after comparing the graph with the detector."""
    limits = options.limits_of(max_pixels, max_bytes)
    located = options.detector_of(detector)
    beside = Path(detector) if located.address is None else Path(located.name)
    folder = out or default_folder(beside, format, int8=int8)
    if folder.exists() and not force:
        raise typer.BadParameter(f"{folder} exists: choose another --out, or add --force")

    from rich.console import Console
    from rich.text import Text

    from discopatch.detector import Detector
    from discopatch.utils import escaped

    console = Console(stderr=True)
    with options.progress_bar(console, "reading the detector") as bar:
        exported = Detector.load(located.path, device="cpu", **limits).export(
            folder,
            format=format,
            int8=int8,
            reference=reference,
            calibration=calibration,
            workers=options.workers_of(workers, processes=False),
            force=force,
            progress=bar.describe,
        )
    if exported.caution is not None:
        console.print(Text(exported.caution, style="yellow"), soft_wrap=True)
    console.print(Text(escaped(f"{folder}: {exported.parity.text}")), soft_wrap=True)


def default_folder(detector: Path, format: str, *, int8: bool) -> Path:
    """Such as camera-3-onnx or camera-3-onnx-int8, beside the detector camera-3."""
    name = detector.name.removesuffix(".safetensors")
    return detector.with_name(f"{name}-{format}{'-int8' if int8 else ''}")
