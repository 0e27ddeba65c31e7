"""discopatch convert"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from discopatch.cli import options


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Discriminator that the code of the paper's authors saved (.pt).")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write the weights to; its name ends in .safetensors.")
    ],
    normalisation: Annotated[
        Literal["batch", "group"],
        typer.Option(
            help="Layers that it was trained with: BatchNorm, or GroupNorm of 32 groups. The file does not say."
        ),
    ],
    pixels: Annotated[
        Literal["unit", "symmetric"],
        typer.Option(help="Range of its pixels: unit for [0, 1], symmetric for [-1, 1]. The file does not say."),
    ],
    force: options.Force = False,
) -> None:
    """Convert a discriminator of the paper's authors to weights for every other command."""
    if out.suffix != ".safetensors":
        raise typer.BadParameter(f"{out}: the name of a file of weights ends in .safetensors")
    options.check_new(out, force=force)

    from rich.console import Console

    from discopatch.model.convert import convert_checkpoint
    from discopatch.utils import check_output

    check_output(out)
    weights, dropped = convert_checkpoint(checkpoint, normalisation=normalisation, pixels=pixels)
    weights.save(out)
    network, transform = weights.discriminator, weights.transform
    architecture, parameters = network.architecture, sum(each.numel() for each in network.parameters())
    widths = ", ".join(map(str, architecture.hidden))
    console = Console(stderr=True)
    for line in (
        f"converted: {len(network.state_dict())} tensors, {parameters:,} parameters; patches of "
        f"{architecture.patch_size} pixels, {widths} channels, normalisation {architecture.normalisation}",
        f"dropped: {', '.join(dropped) or 'nothing'}",
        f"preprocessing: {transform.size} pixels, {transform.fit}, {transform.resample}, pixels {transform.pixels}",
        f"{out}: digest {weights.digest}; use it with `discopatch fit IMAGES --weights {out}`",
    ):
        options.notice(console, line)
