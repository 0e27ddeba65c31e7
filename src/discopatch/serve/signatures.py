"""Signatures of minisign (https://jedisct1.github.io/minisign), without which a service may refuse detectors.

The signature of camera-3.safetensors is camera-3.safetensors.minisig. That of an export is detector.json.minisig in its
folder, since detector.json has the SHA-256 of every other file that is loaded.
"""

import base64
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from discopatch.errors import ParameterError, WeightsError
from discopatch.export.metadata import EXPORT_FILES, MAX_BYTES, METADATA_FILE
from discopatch.serve.metrics import log_event
from discopatch.utils import escaped, require, temporary_folder

PLAIN, HASHED = b"Ed", b"ED"  # what a signature is of: the content, or its BLAKE2b
LONGEST_SIGNATURE = 10_000  # bytes of the file
KEY = re.compile(rb"(?:untrusted comment:[^\n]*\n)?([A-Za-z0-9+/]{56})\s*")
SIGNATURE = re.compile(
    rb"untrusted comment:[^\n]*\n([A-Za-z0-9+/]{99}=)\r?\ntrusted comment: ([^\r\n]*)\r?\n([A-Za-z0-9+/]{86}==)\s*"
)


@contextmanager
def signed_copy(path: Path, key: Path) -> Iterator[Path]:
    """A private copy of a detector, after its signature was checked, or WeightsError.

    The copy is what is loaded: the bytes that were checked, whatever happens to the original meanwhile.
    """
    with temporary_folder() as folder:
        is_export = path.is_dir()
        signed = path / METADATA_FILE if is_export else path
        for source in [path / name for name in sorted(EXPORT_FILES)] if is_export else [path]:
            if source == signed or source.is_file():
                (folder / source.name).write_bytes(read_bounded(source, MAX_BYTES))
        place = folder / signed.name
        comment = check_signature(place, signed.with_name(f"{signed.name}.minisig"), key)
        if not is_export:
            check_whole(place)
        log_event(logging.INFO, "signature", path=str(path), trusted_comment=comment)
        yield folder if is_export else place


def check_whole(path: Path) -> None:
    """Raises WeightsError where a detector reads files that its signature does not cover."""
    from discopatch.model import read_safetensors

    header, _ = read_safetensors(path, kind="detector")
    if header.get("networks"):
        raise WeightsError("it uses a network from outside, which is not signed: fit it with released weights")


def check_signature(path: Path, signature: Path, key: Path) -> str:
    """The trusted comment of a file's signature, or WeightsError unless it was made with the secret part of the key."""
    require("cryptography", "signed")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    found = KEY.fullmatch(read_bounded(key, LONGEST_SIGNATURE))
    public = base64.b64decode(found[1]) if found else b""
    if not public.startswith(PLAIN):
        raise ParameterError(f"{key} is not a public key of minisign: give the .pub file that `minisign -G` wrote")
    sign = f"sign it with `minisign -S -m {path.name}`"
    if not signature.is_file():
        raise WeightsError(f"it is not signed, there is no {signature}: {sign}")
    parts = SIGNATURE.fullmatch(read_bounded(signature, LONGEST_SIGNATURE))
    own, comment, outer = (base64.b64decode(parts[1]), parts[2], base64.b64decode(parts[3])) if parts else (b"",) * 3
    if own[:2] not in (PLAIN, HASHED):
        raise WeightsError(f"{signature} is not a signature of minisign: {sign}")
    if own[2:10] != public[2:10]:
        raise WeightsError(f"{signature} was made with another key than {key}: {sign} and that key")
    content = path.read_bytes()
    try:
        verify = Ed25519PublicKey.from_public_bytes(public[10:]).verify
        verify(own[10:], blake2b(content).digest() if own.startswith(HASHED) else content)
        verify(outer, own[10:] + comment)
    except InvalidSignature:
        raise WeightsError(f"{signature} does not fit its file, one of them was changed: {sign}") from None
    return escaped(comment.decode("utf-8", "replace"))


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a file of at most so many bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror}): check the path") from None
    if len(content) > limit:
        raise WeightsError(f"{path} has more than {limit:,} bytes: give the original")
    return content
