"""discopatch export"""

from pathlib import Path
from typing import Annotated

import typer


def export(
    detector: Annotated[Path, typer.Argument(help="A detector that `discopatch fit` wrote.")],
    format: Annotated[str, typer.Option(help="onnx, openvino or torch-export.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder; beside the detector unless it is given.")
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Convolutions in 8 bits: faster, less exact; needs --reference.")
    ] = False,
    reference: Annotated[
        str | None, typer.Option(help="Images to compare on, best normal ones that are new to the detector.")
    ] = None,
    calibration: Annotated[
        str | None, typer.Option(help="Other normal images for the promise: with --int8 it is exact again.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Threads that decode.", min=1)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an export that is there already.")] = False,
) -> None:
    """Write a detector as a graph for other runtimes, compared with the detector before it is there."""
    folder = out or beside(detector, format, int8=int8)
    if folder.exists() and not force:
        raise typer.BadParameter(f"{folder} exists: choose another --out, or add --force")

    from rich.console import Console
    from rich.text import Text

    from discopatch.deploy.export import export as write_export
    from discopatch.detector import Detector
    from discopatch.images.workers import DEFAULT_WORKERS

    console = Console(stderr=True)
    with console.status("reading the detector") as status:
        done = write_export(
            Detector.load(detector, device="cpu"),
            folder,
            format=format,
            int8=int8,
            reference=reference,
            calibration=calibration,
            workers=workers or DEFAULT_WORKERS,
            force=force,
            tell=lambda doing: status.update(doing),
        )
    if (caution := done.caution) is not None:
        console.print(Text(caution, style="yellow"), soft_wrap=True)
    console.print(Text(f"{folder}: {done.parity.words}"), soft_wrap=True)


def beside(detector: Path, format: str, *, int8: bool) -> Path:
    """camera-3 becomes camera-3-onnx, or camera-3-onnx-int8."""
    name = detector.name.removesuffix(".safetensors")
    return detector.with_name(f"{name}-{format}{'-int8' if int8 else ''}")
