"""Shards in, Parquet out, on an engine that exists; and detectors for pipelines of one's own."""

from discopatch.cluster.batches import BatchScorer

__all__ = ["BatchScorer"]
