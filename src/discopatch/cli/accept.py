"""discopatch accept"""

from typing import Annotated

import typer

from discopatch.cli import options
from discopatch.cli.rows import decision_text


def accept(
    detector: Annotated[str, typer.Argument(help="File of a detector; it is replaced.")],
    images: Annotated[list[str] | None, typer.Argument(help="Images that are normal, such as false alarms.")] = None,
    take_back: Annotated[list[str] | None, typer.Option(help="Name of an image that is normal no longer.")] = None,
    device: options.Device = "auto",
    networks: options.Networks = None,
    max_pixels: options.MaxPixels = None,
) -> None:
    """Make images normal for a detector; images like them are no longer flagged. Without images, list accepted ones.

    No score rises and the calibration stays, so that the guarantee holds however the images are chosen.
    """
    from discopatch.detector import Detector, change_file
    from discopatch.errors import ParameterError
    from discopatch.utils import counted, escaped

    located = options.detector_of(detector)
    if located.address is not None or located.path.is_dir():
        raise ParameterError(f"{detector} is no file of a detector: accept images in the file, then export it again")
    load = {"networks": networks or (), "device": device, **options.limits_of(max_pixels)}
    given = list(images or ())
    before = after = Detector.load(located.path, **load)
    if given or take_back:
        after = change_file(located.path, lambda found: found.take_back(*take_back or ()).accept(given), **load)
    for old, new in zip(before.predict(given), after.predict(given), strict=True) if given else ():
        change = f"p = {old.p_value:.4f} before, {new.p_value:.4f} now"
        print(f"{escaped(new.name)}\t{change}\t{decision_text(is_ood=bool(new.is_ood))}")
    for each in after.accepted_ if not given else ():
        text = f"update by {counted(each.images, 'image')}" if each.is_update else escaped(each.name)
        print(f"{each.time}\t{each.digest}\t{text}")
    number = sum(not each.is_update for each in after.accepted_)
    print(f"{counted(number, 'accepted image')} in {escaped(str(located.path))}")
