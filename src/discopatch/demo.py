"""The whole way in two minutes: train the small preset on a few photos, score clean and corrupted ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from rich.console import Console

from discopatch.benchmark.shifts import Shift, measure_shifts
from discopatch.images import Picture
from discopatch.images.corrupt import corrupt
from discopatch.images.samples import HELD_OUT, TRAINING, crops, sample_photos
from discopatch.model.weights import Weights
from discopatch.scoring import Scorer
from discopatch.training.loop import Habits, train
from discopatch.training.recipe import Recipe

CROPS = 12
SIZE = 256
SEVERITIES = (0, 1, 3, 5)
CAPTION = 24


def run_demo(out: Path, *, steps: int, seed: int, console: Console) -> list[Shift]:
    """Trains into `out` and scores other photos than those of the training; draws some of them."""
    training = crops(sample_photos(TRAINING), CROPS, size=SIZE, seed=seed)
    recipe = Recipe.of("small", steps=steps, seed=seed)
    console.print(f"training the small preset on {len(training)} crops of {len(TRAINING)} photos, {steps} steps")
    outcome = train(training, out, recipe, cache=out / "cache", habits=Habits(samples_every=steps), console=console)
    held_out = crops(sample_photos(HELD_OUT), CROPS, size=SIZE, seed=seed)
    shifts = list(measure_shifts(Scorer(Weights.load(outcome.weights)), held_out, SEVERITIES))
    draw(shifts, dict(list(enumerate(held_out))[::CROPS])).save(out / "scores.png")
    return shifts


def draw(shifts: Sequence[Shift], shown: Mapping[int, Picture]) -> Image.Image:
    """A sheet: a column for each corruption and severity, some of the pictures, by their number, with their scores."""
    columns = [shift for shift in shifts if shift.severity or shift is shifts[0]]
    sheet = Image.new("RGB", (len(columns) * SIZE // 2, len(shown) * SIZE // 2 + CAPTION), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=11)
    for number, shift in enumerate(columns):
        left = number * SIZE // 2
        title = f"{shift.corruption} {shift.severity}" if shift.severity else "clean"
        pen.text((left + 4, 5), title, fill="black", font=font)
        for row, (place, picture) in enumerate(shown.items()):
            top = CAPTION + row * SIZE // 2
            pixels = corrupt(picture.pixels, shift.corruption, shift.severity, seed=place)
            sheet.paste(Image.fromarray(pixels).resize((SIZE // 2, SIZE // 2)), (left, top))
            pen.text(
                (left + 5, top + SIZE // 2 - 18),
                f"{shift.scores[place]:+.1f}",
                fill="white",
                font=font,
                stroke_width=2,
                stroke_fill="black",
            )
    return sheet
