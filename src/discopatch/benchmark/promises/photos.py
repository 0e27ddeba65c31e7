"""Photos: false alarms of one head that is calibrated anew, and what storage alone does to its score."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from discopatch.benchmark.benchplan import check_enough, drawn
from discopatch.benchmark.falsealarms import Scores, kept_promises, random_splits, side_by_side
from discopatch.benchmark.imageset import ImageSet
from discopatch.benchmark.metrics import Estimate, draw, estimate_auroc
from discopatch.benchmark.promises.observer import Observer, scored
from discopatch.benchmark.promises.plan import Plan
from discopatch.benchmark.protocols import matched
from discopatch.benchmark.report import Report, triple
from discopatch.benchmark.suites.natural import natural_suite
from discopatch.benchmark.suites.order import in_random_order
from discopatch.benchmark.ways import Resize
from discopatch.scoring.combined import CombinedHead

TEST = "photos to test"


def measure_photos(observer: Observer, plan: Plan, root: Path) -> Iterator[tuple[str, Report]]:
    """The photos to fit on lie in files of the transform's size: so the last step of all others is such a file too.

    Only `bare` photos and other images come without.
    """
    suite = natural_suite(root)
    check_enough("photos to fit on", len(suite.fit), plan.fit_photos + plan.unfitted_photos)
    train = tuple(in_random_order(suite.fit, seed=plan.seed, count=plan.fit_photos + plan.unfitted_photos))
    protocol = matched(suite, observer.weights.transform)
    fit = ImageSet("photos to fit", train[: plan.fit_photos], protocol.fit)
    unfitted = ImageSet("photos trained on", train[plan.fit_photos :], protocol.fit)
    test = ImageSet(TEST, drawn(suite.test, plan.other), protocol.normal)
    bare_way = (Resize(observer.weights.transform),)
    bare = ImageSet(f"{TEST}, as they come", test.files, bare_way)
    others = [
        ImageSet(f"{other.name}, as they come", drawn(other.files, plan.other), bare_way)
        for other in suite.others
        if other.group != "control"
    ]
    moved = observer.changes(fit)
    fitted, tested = observer.see(fit, test)
    heads = side_by_side(CombinedHead().fit(fitted, moved))
    normal = scored(tested, heads)
    yield "false alarms", {"natural": recalibrated_alarms(plan, normal)}
    sets = (unfitted, bare, *others)
    found = {images.name: scored(seen, heads) for images, seen in zip(sets, observer.see(*sets), strict=True)}
    come = {each.name: found[each.name] for each in others}
    yield (
        "storage",
        {
            "stored": suite.stored.quality,
            "as they come": compared(plan, normal, {TEST: found[bare.name]}),
            "trained on": compared(plan, normal, {unfitted.name: found[unfitted.name]}),
            "other images, as they come": compared(plan, found[bare.name], come),
        },
    )


def recalibrated_alarms(plan: Plan, scores: Scores) -> Report:
    """The head stays; each split draws other test photos to calibrate with."""
    images = len(next(iter(scores.values())))
    calibration = min(plan.split_calibration, images // 2)
    splits = random_splits(images, splits=plan.splits, calibration=calibration, seed=plan.seed)
    return kept_promises([scores] * len(splits), splits, plan.rates)


def compared(plan: Plan, normal: Scores, others: Mapping[str, Scores]) -> dict[str, list[float]]:
    """Mean AUROC over other sets by head; a set of the test photos' name is drawn together with them."""
    found = {}
    for head, scores in normal.items():
        same = draw(len(scores), seed=plan.seed, name=TEST, resamples=plan.resamples)
        estimates = []
        for name, other in others.items():
            second = draw(len(other[head]), seed=plan.seed, name=name, resamples=plan.resamples)
            estimates.append(estimate_auroc(scores, other[head], (same, second)))
        found[head] = triple(Estimate.mean(estimates))
    return found
