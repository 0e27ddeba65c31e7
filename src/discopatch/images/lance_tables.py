"""Lance datasets with a column of images, a fragment at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from discopatch.errors import ImageError, StoreError
from discopatch.images.image import Limits, RefusalReason
from discopatch.images.items import Item, Place, Shard
from discopatch.images.store_errors import cause_of
from discopatch.images.stores import Stamp, StorePath
from discopatch.images.tables import find_columns, items_of, table_name
from discopatch.utils import require

_ROWS_AT_ONCE = 8
_BUFFER = 2**26  # bytes that may be read ahead; Lance's own default is 2 GiB
_IS_BLOB = b"lance-encoding:blob"


@dataclass(frozen=True, slots=True)
class LanceShard(Shard):
    """A fragment of a Lance dataset, as it stands in the newest version."""

    place: Place
    fragment: int
    column: str | None = None
    known_stamp: Stamp = field(default=(), compare=False)  # names of files that never change, and what was deleted

    @property
    def name(self) -> str:
        return f"{table_name(self.place, self.column)}/{self.fragment}"

    @property
    def stamp(self) -> Stamp:
        return self.known_stamp

    def _images(self, limits: Limits) -> Iterator[Item]:
        dataset = _open(self.place)
        fragment = dataset.get_fragment(self.fragment)
        if fragment is None:
            raise ImageError(RefusalReason.MISSING, "a fragment that is no longer there: list the dataset again")
        columns = find_columns(dataset.schema, self.column)
        is_blob = _IS_BLOB in (dataset.schema.field(columns.image).metadata or {})
        scanner = dataset.scanner(
            columns=columns.names,
            fragments=[fragment],
            batch_size=_ROWS_AT_ONCE,
            batch_readahead=1,
            io_buffer_size=_BUFFER,
            scan_in_order=True,
            **({"blob_handling": "all_binary"} if is_blob else {}),
        )
        rows = 0
        for batch in scanner.to_batches():
            yield from items_of(batch, columns, self, rows, limits)
            rows += batch.num_rows


def lance_shards(folder: Place, column: str | None) -> Iterator[Item | Shard]:
    """The fragments of a dataset, in its order."""
    require("lance", extra="lance")
    try:
        for fragment in _open(folder).get_fragments():
            kept = fragment.metadata
            files = (str(file.path) for file in kept.files)
            stamp: Stamp = (int(kept.physical_rows), int(kept.num_deletions), *files)
            yield LanceShard(folder, int(fragment.fragment_id), column, stamp)
    except Exception as error:
        reason, detail = cause_of(error)
        if isinstance(folder, StorePath) and reason is not RefusalReason.UNREADABLE:
            raise StoreError(f"{folder}: {detail}") from None
        damaged = "a Lance dataset that is damaged or too new: pip install --upgrade pylance, or write it again"
        yield Item(str(folder), ImageError(RefusalReason.TRUNCATED, damaged))


def _open(folder: Place) -> Any:
    import lance

    if isinstance(folder, StorePath):
        return lance.dataset(str(folder), storage_options=folder.store.lance_options())
    return lance.dataset(str(folder))
