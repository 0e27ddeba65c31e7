"""discopatch explain"""

import json
from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli import options
from discopatch.cli.rows import decision_text


def explain(
    image: Annotated[str, typer.Argument(help="Image file to explain.")],
    detector: options.Detector,
    out: Annotated[Path, typer.Option("--out", "-o", help="Image file to write the heatmap to: .png, .jpg or .webp.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with boxes and contours of regions.")] = False,
    device: options.Device = "auto",
    networks: options.Networks = None,
    max_pixels: options.MaxPixels = None,
) -> None:
    """Show where and how an image differs from normal images."""
    from discopatch.explain import image_format, save_heatmap
    from discopatch.utils import check_output, escaped

    image_format(out)
    check_output(out)
    loaded = options.load(detector, networks, device=device, **options.limits_of(max_pixels))
    explanation = loaded.explain(image)
    save_heatmap(out, explanation.image, explanation.anomaly_map)
    if as_json:
        print(json.dumps(explanation.as_dict(loaded.column_names)))
        return
    prediction = explanation.prediction
    decision = decision_text(is_ood=bool(prediction.is_ood))
    print(f"{escaped(prediction.name)}\t{prediction.score:.4f}\tp = {prediction.p_value:.4f}\t{decision}")
    for _, z, text in explanation.findings:
        print(f"  {text} (z = {z:.1f})")
    for (left, top, width, height), _, _, peak in explanation.regions:
        print(f"  unusual region: {width} x {height} pixels at x = {left}, y = {top} (peak {peak:.1f})")
    print(escaped(f"heatmap: {out}"))
