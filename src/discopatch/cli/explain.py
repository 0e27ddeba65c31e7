"""discopatch explain"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli import options
from discopatch.cli.printers import decision_text


def explain(
    image: Annotated[str, typer.Argument(help="Image file to explain.")],
    detector: Annotated[Path, typer.Option(help=options.DETECTOR)],
    out: Annotated[Path, typer.Option("--out", "-o", help="PNG file to write the heatmap to.")],
    device: options.Device = "auto",
) -> None:
    """Show where an image differs from normal ones, and how."""
    import discopatch
    from discopatch.report import save_heatmap

    explanation = discopatch.load(detector, device=device).explain(image)
    save_heatmap(out, explanation.image, explanation.anomaly_map)
    prediction = explanation.prediction
    decision = decision_text(is_ood=bool(prediction.is_ood))
    print(f"{prediction.name}\t{prediction.score:.4f}\tp = {prediction.p_value:.4f}\t{decision}")
    for reason in explanation.reasons:
        print(f"  {reason.text} (z = {reason.z:.1f})")
    print(f"heatmap: {out}")
