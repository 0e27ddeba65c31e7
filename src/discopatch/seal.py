"""Files that carry their own digest, so that a change of any byte is noticed.

It guards against damage, not against malice: whoever changes a file on purpose can write a new digest.
"""

import hashlib
from pathlib import Path

UNSEALED = "0" * 64  # stands in a file until it is whole
SEALED_WITHIN = 2**23  # bytes from the beginning of a file, in which its digest stands


def seal(path: Path) -> None:
    """Puts the digest of the file in the place of UNSEALED."""
    with path.open("r+b") as file:
        place = file.read(SEALED_WITHIN).index(UNSEALED.encode())
        file.seek(place)
        file.write(sealed_digest(path, UNSEALED).encode())


def sealed_digest(path: Path, digest: str) -> str:
    """The SHA-256 of the file with UNSEALED in the place of `digest`: the digest itself, if the file is unchanged."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        total.update(file.read(SEALED_WITHIN).replace(digest.encode(), UNSEALED.encode(), 1))
        while part := file.read(2**20):
            total.update(part)
    return total.hexdigest()
