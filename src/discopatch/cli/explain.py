"""discopatch explain"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli import options
from discopatch.cli.printers import decision_text


def explain(
    image: Annotated[str, typer.Argument(help="Image file to explain.")],
    detector: Annotated[str, typer.Option(help=options.DETECTOR)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Image file to write the heatmap to: .png, .jpg or .webp.")],
    device: options.Device = "auto",
    networks: Annotated[list[str] | None, typer.Option(help=options.PLACES)] = None,
    max_pixels: options.MaxPixels = None,
) -> None:
    """Show where and how an image differs from normal images."""
    limits = options.limits_of(max_pixels)

    import discopatch
    from discopatch.explain import image_format, save_heatmap
    from discopatch.utils import check_output, escaped

    image_format(out)
    check_output(out)
    path = options.detector_of(detector).path
    explanation = discopatch.load(path, networks=networks or (), device=device, **limits).explain(image)
    save_heatmap(out, explanation.image, explanation.anomaly_map)
    prediction = explanation.prediction
    decision = decision_text(is_ood=bool(prediction.is_ood))
    print(f"{escaped(prediction.name)}\t{prediction.score:.4f}\tp = {prediction.p_value:.4f}\t{decision}")
    for component in explanation.components:
        print(f"  {component.text} (z = {component.z:.1f})")
    for reason in explanation.reasons:
        print(f"  {reason.text} (z = {reason.z:.1f})")
    print(escaped(f"heatmap: {out}"))
