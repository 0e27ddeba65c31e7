"""Resumable batch scoring in parts: shards in, Parquet out, by one process, several processes or Ray."""

from discopatch.batch.batch_scorer import BatchScorer
from discopatch.batch.folder import ScoresFolder, Summary, open_scores, read_scores, rescore
from discopatch.batch.plan import Part
from discopatch.batch.run import Run, score_to

__all__ = ["BatchScorer", "Part", "Run", "ScoresFolder", "Summary", "open_scores", "read_scores", "rescore", "score_to"]
