"""How much memory this process has ever held."""

import resource
import sys


def peak_mib() -> float:
    """Of resident memory; Linux counts in KiB, macOS in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)
