"""What a folder of scores was begun with; whoever goes on with it must bring the same."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import discopatch
from discopatch.batch.features import Layout
from discopatch.batch.identity import Identity
from discopatch.batch.store import Store
from discopatch.errors import DiscopatchError, ScoresError
from discopatch.schema import Digest, LongDigest, Name, Positive, load_json, read_fields

KIND, FORMAT = "scores", 1
MANIFEST = "_manifest.json"  # names that begin so are passed over by who reads a folder of Parquet
MOST_BYTES = 2**24
OTHER_FOLDER = "choose another folder"


@dataclass(frozen=True)
class Rescored:
    """What scores were made of that no image was read for, and the detector that had read them."""

    of: Literal["scores", "features in float16"]
    detector: Digest


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The fields of the file, beyond its format."""

    discopatch: Name = discopatch.__version__
    detector: Identity
    max_pixels: Positive
    max_bytes: Positive
    per_part: Positive
    components: tuple[Name, ...]
    source: LongDigest  # of the first listing, which is the first plan
    features: Layout | None = None
    rescored: Rescored | None = None

    def to_json(self) -> bytes:
        return (json.dumps({"kind": KIND, "format": FORMAT, **asdict(self)}, indent=1) + "\n").encode()

    @classmethod
    def read(cls, store: Store) -> Self | None:
        """That of the folder, or None where it has none."""
        if not store.has(MANIFEST):
            return None
        where = f"{store.name}/{MANIFEST}"
        if store.size(MANIFEST) > MOST_BYTES:
            raise ScoresError(f"{where} is no manifest of scores: {OTHER_FOLDER}")
        try:
            content = load_json(store.read(MANIFEST))
            if not isinstance(content, dict) or content.get("kind") != KIND:
                raise ScoresError(f"{where} is no manifest of scores: {OTHER_FOLDER}")
            if content.get("format") != FORMAT:
                raise ScoresError(f"{where} has format {content.get('format')!r}, this discopatch has {FORMAT}")
            return read_fields(cls, content, where="manifest", ignore_unknown=True)
        except DiscopatchError as error:
            raise ScoresError(f"{where}: {error}; update discopatch, or {OTHER_FOLDER}") from None

    def check_same(self, wanted: "Manifest", folder: str) -> None:
        """Raises ScoresError, with what differs, unless the folder may be gone on with as `wanted`."""
        if self.detector != wanted.detector:
            differing = ", ".join(self.detector.differences(wanted.detector))
            raise ScoresError(
                f"{folder} was begun with the detector {self.detector.digest}, and {wanted.detector.digest} is another "
                f"(in its {differing}): give the first, or {OTHER_FOLDER}; `discopatch rescore` applies another "
                "detector to what is there"
            )
        if self.features != wanted.features:
            kinds = "features " + ", ".join(self.features.kinds) if self.features else "no features"
            raise ScoresError(f"{folder} was begun with {kinds}: ask for the same, or {OTHER_FOLDER}")
        given: dict[str, Any] = asdict(wanted)
        for name, option in (("max_pixels", "--max-pixels"), ("max_bytes", "--max-bytes"), ("per_part", "--per-part")):
            if (own := getattr(self, name)) != given[name]:
                raise ScoresError(f"{folder} was begun with {option} {own}: give the same, or {OTHER_FOLDER}")
        if self.rescored != wanted.rescored or self.components != wanted.components:
            raise ScoresError(f"{folder} holds scores that were made in another way: {OTHER_FOLDER}")
