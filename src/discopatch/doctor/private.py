"""Reports are pasted in public: paths of the user do not belong into them."""

import os
import re
import sys
from pathlib import Path
from tempfile import gettempdir
from typing import Any

# An absolute path up to its last part, of Unix or Windows, which is no part of an address or of a name that was put in.
FOLDERS = re.compile(r"(?<![\w~.$:/>])(?:[A-Za-z]:[\\/]|/)(?:[^\s:;,'\"\\/]+[\\/])+")


def without_paths(value: Any) -> Any:
    """The same content with ~ for the home folder in all texts, and of other absolute paths the last part alone."""
    if isinstance(value, dict):
        return {without_paths(name): without_paths(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(each) for each in value]
    return without_folders(value) if isinstance(value, str) else value


def without_folders(text: str) -> str:
    for folder, name in known_folders():
        text = re.sub(re.escape(folder) + r"(?=$|[\\/\s:;,'\")])", lambda _, name=name: name, text)  # type: ignore[misc]
    return FOLDERS.sub(".../", text)


def known_folders() -> list[tuple[str, str]]:
    """Folders with the names that stand for them, the longest first: one may lie in another."""
    places = {gettempdir(): "$TMPDIR", sys.prefix: "$PREFIX", os.environ.get("XDG_CACHE_HOME", ""): "$XDG_CACHE_HOME"}
    found = {folder: name for folder, name in places.items() if len(Path(folder).parts) > 1}
    home = Path.home()
    for folder in list(found):
        if Path(folder).is_relative_to(home):
            found[folder] = str(Path("~") / Path(folder).relative_to(home))
    if len(home.parts) > 1:
        found[str(home)] = "~"
    return sorted(found.items(), key=lambda each: -len(each[0]))
