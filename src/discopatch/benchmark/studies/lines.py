"""Every figure of the studies on a line of its own, for the CSV of a benchmark run: no rounding, nothing left out."""

from collections.abc import Iterator

from discopatch.benchmark.figures.spectra import FREQUENCIES
from discopatch.benchmark.studies.gallery import CONTROL, FAR, NEAR, cell_name
from discopatch.benchmark.studies.names import ALL, RECIPES, SCORES
from discopatch.benchmark.studies.seedtables import difference, seed_spread
from discopatch.benchmark.tables.csv import MEAN, Line
from discopatch.benchmark.tables.find import Report

PROTOCOL = "matched"  # one transform and one storage for all
WAYS = ("batch", "own sets", "half", "one")


def study_lines(report: Report) -> Iterator[Line]:
    """Study by study."""
    yield from evaluation_lines(report)
    yield from seed_lines(report)
    yield from count_lines(report)
    yield from batch_lines(report)
    yield from spectra_lines(report)
    yield from run_lines(report)


def evaluation_lines(report: Report) -> Iterator[Line]:
    """paper-0/logit, set by set and in the mean over a group."""
    places = set_places(report)
    for run, found in (report.get("evaluation") or {}).items():
        for name, scores in found["sets"].items():
            for score, figure in scores.items():
                yield PROTOCOL, *places.get(name, (name, "")), f"{run}/{score}", "auroc", *figure
        for group, scores in found["groups"].items():
            for score, figure in scores.items():
                yield PROTOCOL, MEAN, group, f"{run}/{score}", "auroc", *figure


def set_places(report: Report) -> dict[str, tuple[str, str]]:
    """The set and group of each, as a benchmark run calls them: fog 3 -> fog/3."""
    groups = {"near": NEAR, "far": FAR, "control": CONTROL}
    found = {name: (name, group) for group, names in groups.items() for name in names}
    cells = [(name, severity) for name in report["plan"]["corruptions"] for severity in range(1, 6)]
    return found | {cell_name(*cell): (f"{cell[0]}/{cell[1]}", "covariate") for cell in cells}


def seed_lines(report: Report) -> Iterator[Line]:
    """paper/logit over seeds; natural-paper/logit is the difference, paired."""
    for score in SCORES:
        for group in ALL:
            for kind in RECIPES:
                if spread := seed_spread(report, kind, group, score):
                    where = PROTOCOL, MEAN, group, f"{kind}/{score}"
                    yield *where, "auroc mean over seeds", spread.mean, None, None
                    if spread.seeds > 1:
                        yield *where, "auroc spread over seeds", spread.deviation, None, None
            if spread := difference(report, group, score):
                ends = spread.interval if spread.seeds > 1 else (None, None)
                name = f"{'-'.join(reversed(RECIPES))}/{score}"
                yield PROTOCOL, MEAN, group, name, "auroc difference", spread.mean, *ends


def count_lines(report: Report) -> Iterator[Line]:
    """paper-0-64/logit: by 64 patches."""
    for run, found in (report.get("patch counts") or {}).items():
        for count, groups in found["counts"].items():
            for group, heads in groups.items():
                for head, figure in heads.items():
                    yield PROTOCOL, MEAN, group, f"{run}-{count}/{head}", "auroc", *figure


def batch_lines(report: Report) -> Iterator[Line]:
    """full-0/batch 16, full-0/learned; each round by itself too."""
    for run, found in (report.get("batch normalisation") or {}).items():
        ways = {"learned": found.get("learned") or {}}
        ways |= {f"{way} {size}": each for way in WAYS for size, each in (found.get(way) or {}).items()}
        for way, groups in ways.items():
            for group, each in groups.items():
                where = PROTOCOL, MEAN, group, f"{run}/{way}"
                yield *where, "auroc", *each["auroc"]
                for number, value in enumerate(each["rounds"], start=1):
                    yield *where, f"auroc round {number}", value, None, None


def spectra_lines(report: Report) -> Iterator[Line]:
    """The curves; their set is the frequency in cycles a pixel."""
    for run, found in (report.get("spectra") or {}).items():
        curves = found["curves"]
        for kind in [name for name in curves if name != FREQUENCIES]:
            for frequency, power in zip(curves[FREQUENCIES], curves[kind], strict=True):
                yield "", f"{frequency}", "spectra", f"{run}/{kind}", "power", power, None, None


def run_lines(report: Report) -> Iterator[Line]:
    """What every training took."""
    for run, found in (report.get("runs") or {}).items():
        for metric in ("steps", "patches", "seconds"):
            yield "", "", "training", run, metric, found[metric], None, None
