"""What is optional: imported where it is used, and its absence says what to install."""

import sys
from importlib.util import find_spec


def check_installed(module: str, extra: str) -> None:
    """Says what to install, before the long work begins; nothing is imported for it."""
    there = sys.modules[module] if module in sys.modules else find_spec(module)
    if there is None:
        raise ModuleNotFoundError(f"{module} is not installed: pip install 'discopatch[{extra}]'")
