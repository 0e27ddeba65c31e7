"""Networks of the benchmark: two rival classifiers, and any encoder of this package with the same interface."""
