"""What the tables, lines and figures of the studies call things."""

from discopatch.benchmark.tables.find import Report

GROUPS = ("near", "far", "covariate")
ALL = (*GROUPS, "control")
SCORES = ("patches", "logit", "statistics", "combined")
HEADS = ("logit", "statistics", "combined")  # of so many patches
LAYERS = {"group-0": "GroupNorm", "instance-0": "InstanceNorm", "paper-0": "BatchNorm over patches"}
RECIPES = ("paper", "natural")


def score_name(score: str, report: Report) -> str:
    """Of those of an evaluation."""
    names = {"patches": f"mean logit of {report['plan']['scored_patches']} patches", "logit": "mean logit, dense"}
    return names.get(score, score)


def head_name(head: str) -> str:
    """Of those that look at so many patches."""
    return {"logit": "mean logit"}.get(head, head)
