"""Which images a benchmark runs on: one file a suite, and the check of what lies in a folder."""
