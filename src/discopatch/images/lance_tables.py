"""Lance datasets with a column of images, a fragment at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from discopatch.errors import ImageError
from discopatch.images.image import Limits, RefusalReason
from discopatch.images.items import Item, Place, Shard
from discopatch.images.store_errors import known_cause
from discopatch.images.stores import Stamp, StorePath
from discopatch.images.tables import find_columns, items_of, table_name
from discopatch.utils import require

_ROWS_AT_ONCE = 8


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
        count = fragment.count_rows()
        for first in range(0, count, _ROWS_AT_ONCE):
            # A scanner reads far ahead of the rows that it gives, whatever bounds it is given.
            rows = fragment.take(list(range(first, min(first + _ROWS_AT_ONCE, count))), columns=columns.names)
            for batch in rows.combine_chunks().to_batches():
                yield from items_of(batch, columns, self, first, limits)


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
        damaged = "a Lance dataset that is damaged or too new: pip install --upgrade pylance, or write it again"
        cause = known_cause(error) if isinstance(folder, StorePath) else None
        yield Item(str(folder), ImageError(*(cause or (RefusalReason.TRUNCATED, damaged))))


def _open(folder: Place) -> Any:
    import lance

    if isinstance(folder, StorePath):
        return lance.dataset(str(folder), storage_options=folder.store.lance_options())
    return lance.dataset(str(folder))
