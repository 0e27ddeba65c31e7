"""Solar cells without a defect: false alarms of heads that are fitted anew, and fits of several sizes."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from discopatch.benchmark.falsealarms import fitted_scores, kept_promises, random_splits, side_by_side
from discopatch.benchmark.imageset import ImageSet
from discopatch.benchmark.metrics import Estimate, draw, estimate_auroc
from discopatch.benchmark.pool import Pool
from discopatch.benchmark.promises.observer import Observer, scored
from discopatch.benchmark.promises.plan import Plan
from discopatch.benchmark.protocols import matched
from discopatch.benchmark.report import Report, triple
from discopatch.benchmark.suites.solar import solar_suite
from discopatch.fitting import CHANGED, split
from discopatch.scoring import Evidence
from discopatch.scoring.combined import CombinedHead
from discopatch.scoring.evidence import Displacements

FIT_SIZE_RATE = 0.1  # asks for few calibration images, so that the smallest fits are allowed


def measure_cells(observer: Observer, plan: Plan, folder: Path | None) -> Iterator[tuple[str, Report]]:
    """No cell passes the network twice, however often it is fitted."""
    suite = solar_suite(folder, {}, test=plan.corrupted, seed=plan.seed)
    protocol = matched(suite, observer.weights.transform)
    fit = ImageSet("cells to fit", suite.fit[: plan.cells], protocol.fit)
    test = ImageSet("cells to test", suite.test, protocol.normal)
    corrupted = [
        ImageSet(f"{name}/{plan.severity}", suite.test, protocol.corrupted((name, plan.severity)))
        for name in plan.corruptions
    ]
    moved = observer.changes(fit)
    normal, tested = observer.see(fit, test)
    observer.tell("false alarms on cells", 0, plan.splits)
    all_normal = Evidence.concatenate([normal, tested])
    yield "false alarms", {"solar": refitted_alarms(plan, all_normal, moved, observer.pool)}
    yield "fit size", fit_sizes(plan, normal, moved, tested, observer.see(*corrupted))


def refitted_alarms(plan: Plan, seen: Evidence, moved: Displacements, pool: Pool) -> Report:
    """Heads fitted anew on a part of each split.

    The few images on which the known changes are tried are fitted in every split, as a detector does it.
    """
    splits = random_splits(
        len(seen.logits),
        splits=plan.splits,
        fit=plan.split_fit,
        calibration=plan.split_calibration,
        always_fit=range(CHANGED),
        seed=plan.seed,
    )
    scores = list(pool.stream(partial(fitted_scores, seen, moved, each) for each in splits))
    return kept_promises(scores, splits, plan.rates)


def fit_sizes(
    plan: Plan, normal: Evidence, moved: Displacements, tested: Evidence, corrupted: Sequence[Evidence]
) -> Report:
    """Mean AUROC over corruptions, by how many images were given to fit, calibration included."""
    same = draw(len(tested.logits), seed=plan.seed, name="test", resamples=plan.resamples)
    found: Report = {}
    for size in (each for each in plan.fit_sizes if each <= len(normal.logits)):
        fitting, _ = split(size, FIT_SIZE_RATE, seed=plan.seed, never_held_out=list(range(CHANGED)))
        heads = side_by_side(CombinedHead().fit(normal.of(fitting), moved))
        clean, shifted = scored(tested, heads), [scored(each, heads) for each in corrupted]
        found[str(size)] = {"fitted": len(fitting)}
        for head in heads:
            estimates = [estimate_auroc(clean[head], each[head], (same, same)) for each in shifted]
            found[str(size)][head] = triple(Estimate.mean(estimates))
    return {"severity": plan.severity, "corruptions": len(corrupted), "test": len(tested.logits), "sizes": found}
