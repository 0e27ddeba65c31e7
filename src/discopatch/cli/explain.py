"""discopatch explain"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli.loading import load


def explain(
    image: Annotated[str, typer.Argument(help="One image.")],
    detector: Annotated[Path, typer.Option(help="A detector that `discopatch fit` or `export` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The heatmap, a PNG.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Show where an image differs from normal ones, and say how."""
    from discopatch.report import save_heatmap

    found = load(detector, device=device).explain(image)
    save_heatmap(out, found.pixels, found.heat)
    prediction = found.prediction
    verdict = "unlike normal" if prediction.is_ood else "like normal"
    print(f"{prediction.name}\t{prediction.score:.4f}\tp = {prediction.p_value:.4f}\t{verdict}")
    for reason in found.reasons:
        print(f"  {reason}")
    print(f"heatmap: {out}")
