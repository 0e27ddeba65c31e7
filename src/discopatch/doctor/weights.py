"""The released weights, compared with the digests on their cards; without torch."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from discopatch.utils import file_digest

Status = Literal["ok", "missing", "damaged"]


def probe_weights(folder: Path | None = None) -> dict[str, Any]:
    """Of each card the file's size and SHA-256, the digest of its values, and whether the file is the released one."""
    folder = folder or released_folder()
    found = {}
    for path in sorted(folder.glob("*.json")):
        card = json.loads(path.read_text(encoding="utf-8"))
        weights = path.with_suffix(".safetensors")
        there = weights.is_file()
        digest = file_digest(weights) if there else None
        status: Status = "missing" if not there else "ok" if digest == card["sha256"] else "damaged"
        found[path.stem] = {
            "status": status,
            "bytes": weights.stat().st_size if there else None,
            "sha256": digest,
            "weights_digest": card["weights_digest"],
        }
    if not found:
        raise FileNotFoundError("no released weights are in the package: install discopatch again")
    return found


def released_folder() -> Path:
    return Path(str(files("discopatch") / "pretrained"))
