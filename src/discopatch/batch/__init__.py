"""Many images: shards in, Parquet out, in parts that any process may do, stop, and go on with."""

from discopatch.batch.batches import BatchScorer
from discopatch.batch.folder import ScoresFolder, begin_scores, finish_part, open_scores
from discopatch.batch.plan import Part, Plan, plan_parts
from discopatch.batch.read import read_features, read_scores
from discopatch.batch.rescore import rescore
from discopatch.batch.run import Run, score_to
from discopatch.batch.scoring import PartScorer, score_part
from discopatch.batch.store import Store, open_store

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
