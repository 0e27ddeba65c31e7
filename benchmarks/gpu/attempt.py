"""Work that may fail without ending the rest."""

import traceback
from collections.abc import Callable
from typing import Any


def attempt(name: str, work: Callable[[], object]) -> Any:
    """What comes of it, or None and the reason printed: a machine is lent for minutes, the next part should run."""
    try:
        return work()
    except Exception:
        print(f"\n!! {name} failed\n{traceback.format_exc()}", flush=True)
        return None
