"""All promises, one after the other."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from discopatch.benchmark.promises.cells import measure_cells
from discopatch.benchmark.promises.observer import Observer
from discopatch.benchmark.promises.photos import measure_photos
from discopatch.benchmark.promises.plan import Plan
from discopatch.benchmark.report import Report, made
from discopatch.benchmark.run import in_full_precision

FORMAT = 1


def measure(observer: Observer, plan: Plan, *, data: Path, solar: Path | None) -> Iterator[Report]:
    """The report, ever more of it, so that what is done can be stored at once.

    `data` holds natural/ and ood/; without a folder of solar cells those of the installed elpv-dataset are taken.
    """
    start = time.perf_counter()
    in_full_precision()
    weights = observer.weights
    report: Report = {"format": FORMAT, "made": {}, "plan": asdict(plan), "data": observer.data}
    for name, section in chain(measure_cells(observer, plan, solar), measure_photos(observer, plan, data)):
        report[name] = report.get(name, {}) | section
        report["made"] = made(
            weights,
            seeds=(plan.seed,),
            resamples=plan.resamples,
            device=observer.scorer.device,
            seconds=time.perf_counter() - start,
        )
        yield report
