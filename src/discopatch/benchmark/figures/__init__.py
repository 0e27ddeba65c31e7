"""What a benchmark run and the studies found, as figures for print: PNG and PDF."""

from discopatch.benchmark.figures.write import write_figures

__all__ = ["write_figures"]
