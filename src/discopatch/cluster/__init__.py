"""Many images: shards in, Parquet out, in parts that any process may do, stop, and go on with."""

from discopatch.cluster.batches import BatchScorer
from discopatch.cluster.folder import ScoresFolder, begin_scores, finish_part, open_scores
from discopatch.cluster.plan import Part, Plan, plan_parts
from discopatch.cluster.read import read_features, read_scores
from discopatch.cluster.rescore import rescore
from discopatch.cluster.run import Run, score_to
from discopatch.cluster.scoring import PartScorer, score_part
from discopatch.cluster.store import Store, open_store

__all__ = [
    "BatchScorer",
    "Part",
    "PartScorer",
    "Plan",
    "Run",
    "ScoresFolder",
    "Store",
    "begin_scores",
    "finish_part",
    "open_scores",
    "open_store",
    "plan_parts",
    "read_features",
    "read_scores",
    "rescore",
    "score_part",
    "score_to",
]
