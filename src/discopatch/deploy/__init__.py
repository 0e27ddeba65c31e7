"""A fitted detector as a graph for other runtimes, and a runtime for it that needs no torch."""
