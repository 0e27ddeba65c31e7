"""How much memory there is, and how much of it a container lets its processes take."""

import os
from contextlib import suppress
from math import inf
from pathlib import Path

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def physical_memory() -> int | None:
    """In bytes; None where the system does not tell."""
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def memory_limit() -> int | None:
    """What a container may use, in bytes, where that is less than there is."""
    for path in LIMITS:
        with suppress(OSError, ValueError):
            limit = int(Path(path).read_text())
            return limit if limit < (physical_memory() or limit) else None
    return None


def usable_memory() -> float:
    """What processes here may take together, in bytes; infinite where the system does not tell."""
    return memory_limit() or physical_memory() or inf
