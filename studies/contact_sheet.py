"""Every corruption at every severity as one image: docs/images/corruptions.png.

python studies/contact_sheet.py docs/images/corruptions.png
"""

from pathlib import Path

import numpy as np
import typer
from PIL import Image, ImageDraw, ImageFont

from discopatch.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from discopatch.images import Pixels
from discopatch.images.samples import sample_photos

SIZE = 256  # images are corrupted at this size, whatever that of the tiles
GAP, HEADING, NAMES = 2, 20, 118  # between tiles, height of the first row, width of the first column


def main(out: Path, photo: str = "astronaut", tile: int = 92, seed: int = 0) -> None:
    """Draws a row for each corruption and a column for each severity; 0 is the untouched photo."""
    clean = centre_square(sample_photos([photo])[photo])
    severities = (0, *SEVERITIES)
    step = tile + GAP
    sheet = Image.new("RGB", (NAMES + len(severities) * step, HEADING + len(CORRUPTIONS) * step), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(12)
    for severity in severities:
        draw.text((NAMES + severity * step + tile // 2, HEADING // 2), str(severity), "black", font, "mm")
    for row, name in enumerate(CORRUPTIONS):
        top = HEADING + row * step
        draw.text((NAMES - 8, top + tile // 2), name.replace("_", " "), "black", font, "rm")
        for severity in severities:
            corrupted = Image.fromarray(corrupt(clean, name, severity, seed=seed + row))
            small = corrupted.resize((tile, tile), Image.Resampling.LANCZOS)
            sheet.paste(small, (NAMES + severity * step, top))
    # 64 levels of a colour look like 256 in tiles this small, and the file is a third smaller; white stays white.
    sheet.point(lambda level: level | 3).save(out, optimize=True)


def centre_square(photo: Pixels) -> Pixels:
    """The middle of the photo, (SIZE, SIZE, 3)."""
    height, width = photo.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    middle = Image.fromarray(photo[top : top + side, left : left + side])
    return np.asarray(middle.resize((SIZE, SIZE), Image.Resampling.LANCZOS))


if __name__ == "__main__":
    typer.run(main)
