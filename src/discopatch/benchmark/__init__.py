"""What the numbers are worth: suites, metrics, tables."""
