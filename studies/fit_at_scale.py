"""A fit on ten million rows of features: time, passes and peak memory beside fits on fewer, and false alarms.

python studies/fit_at_scale.py                          # 10,000, 100,000, 1,000,000 and 10,000,000 rows
python studies/fit_at_scale.py --rows 10000 --rows 30000 --new 1000
python studies/fit_at_scale.py --features scores/       # of `discopatch score --features`, whatever its size

The table of docs/detector.md. Rows are made up as they are asked for, the same in each pass, so that no disk is needed:
correlated statistics, logits and pooled features of the sizes of natural-v2 in one eighth, unless said otherwise. What
is measured is the fit; reading Parquet comes on top. Each size has a process of its own, since memory is counted by its
peak.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from discopatch import Detector, Features
from discopatch.bench.cost import peak_mib
from discopatch.streamed_fitting import FeatureStream

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
BATCH = 1_000
LEVELS = 3.0  # by which the statistics' own levels differ


class MadeUp(FeatureStream):
    """Rows that follow from the seed and their number alone."""

    name = "made-up features"

    def __init__(self, rows: int, *, statistics: int, pooled: int, logits: int, seed: int = 0) -> None:
        camera = np.random.default_rng(99)
        self.rows, self.seed, self.passes = rows, seed, 0
        self.levels = camera.normal(0, LEVELS, statistics).astype(np.float32)
        self.mixing = (camera.normal(size=(statistics, statistics)) / statistics**0.5).astype(np.float32)
        self.middle = camera.normal(1, 1, pooled).astype(np.float32)
        self.logits = logits

    def __len__(self) -> int:
        return self.rows

    def read_small(self, most: int = 0) -> None:
        """Never at once: what is measured is the fit in parts."""

    def batches(self) -> Iterator[Features]:
        self.passes += 1
        for start in range(0, self.rows, BATCH):
            rng, count = np.random.default_rng([self.seed, start]), min(BATCH, self.rows - start)
            drawn = rng.standard_normal((count, len(self.levels)), np.float32)
            pooled = self.middle + np.float32(0.3) * rng.standard_normal((count, len(self.middle)), np.float32)
            logits = 4 + rng.standard_normal((count, self.logits), np.float32)
            yield Features(logits, self.levels + drawn @ self.mixing, pooled)


def main(
    rows: Annotated[list[int] | None, typer.Option(help="Sizes; several times.")] = None,
    statistics: Annotated[int, typer.Option(help="Of a row.")] = 128,
    pooled: Annotated[int, typer.Option(help="Of a row.")] = 160,
    logits: Annotated[int, typer.Option(help="Of a row.")] = 32,
    new: Annotated[int, typer.Option(help="New normal rows, of which some are flagged.")] = 20_000,
    features: Annotated[Path | None, typer.Option(help="Stored features instead.")] = None,
    alone: Annotated[bool, typer.Option("--alone", hidden=True, help="Fit here, and print one line.")] = False,
) -> None:
    """Prints a table, each row as soon as it is known."""
    if features is not None:
        start, detector = time.perf_counter(), Detector(device="cpu").fit_features(features)
        print(f"{detector.guarantee_.text} {time.perf_counter() - start:.1f} s, {peak_mib():.0f} MiB at most")
        return
    if alone:
        print(fit_once((rows or SIZES)[0], statistics, pooled, logits, new))
        return
    print("| rows | fitted | held out | passes | seconds | rows/s | peak MiB | before the fit | false alarms at 1 % |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    sizes = [f"--statistics={statistics}", f"--pooled={pooled}", f"--logits={logits}", f"--new={new}"]
    for count in rows or SIZES:
        command = [sys.executable, "-W", "ignore", __file__, f"--rows={count}", *sizes, "--alone"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(done.stdout.strip(), flush=True)


def fit_once(rows: int, statistics: int, pooled: int, logits: int, new: int) -> str:
    """One row of the table."""
    stream = MadeUp(rows, statistics=statistics, pooled=pooled, logits=logits)
    others = MadeUp(new, statistics=statistics, pooled=pooled, logits=logits, seed=1)
    next(stream.batches())
    stream.passes, before, start = 0, peak_mib(), time.perf_counter()
    detector = Detector(false_alarm_rate=0.01, device="cpu").fit_features(stream)
    seconds, peak = time.perf_counter() - start, peak_mib()
    flagged = sum(int(detector.predict_features(batch).is_ood.sum()) for batch in others.batches())
    known = detector.guarantee_
    return (
        f"| {rows:,} | {known.n_fit:,} | {known.n_calibration:,} | {stream.passes - 1} | {seconds:.1f} | "
        f"{rows / seconds:,.0f} | {peak:.0f} | {before:.0f} | {flagged / new:.2%} |"
    )


if __name__ == "__main__":
    typer.run(main)
