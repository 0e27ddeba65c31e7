"""Which methods are worth a place in a figure."""

from statistics import fmean

from discopatch.benchmark.tables.find import Report, groups, look, measured, methods, protocols
from discopatch.benchmark.tables.labels import is_ours, patch_count, split


def main_methods(report: Report, count: int = 4) -> list[str]:
    """The reference, the paper's score, then the best of the others; ours come first."""
    names = methods(report)
    reference = look(report, "protocols", protocols(report)[0], "reference")
    ours = [name for name in (reference, paper_method(report)) if name in names]
    others = sorted((name for name in names if not is_ours(name)), key=lambda name: -overall(report, name))
    rest = [name for name in names if is_ours(name) and name not in ours]
    return list(dict.fromkeys([*ours, *others, *rest]))[:count]


def paper_method(report: Report) -> str | None:
    """The mean logit of patches: of 64, or else of the most there are."""
    found = [name for name in methods(report) if split(name)[1] == "logit" and patch_count(name)]
    return max(found, key=lambda name: (patch_count(name) == 64, patch_count(name)), default=None)


def overall(report: Report, method: str) -> float:
    """Mean AUROC over the groups in which it was measured, under the first protocol."""
    protocol = protocols(report)[0]
    found = [measured(report, protocol, group, method).get("auroc") for group in groups(report)]
    values = [figure[0] for figure in found if figure is not None]
    return fmean(values) if values else 0.0
