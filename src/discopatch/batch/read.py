"""Reading scores that were written: as a dataset of pyarrow, or features batch by batch."""

import os
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from discopatch.batch.folder import ScoresFolder, file_of, open_scores
from discopatch.batch.plan import Part
from discopatch.batch.store import Store, open_store
from discopatch.errors import ScoresError

if TYPE_CHECKING:
    import pyarrow.dataset

    from discopatch.encoders import Features, Kind

FEATURE_ROWS = 1_000  # of a batch


def read_scores(out: str | os.PathLike[str] | Store, *, allow_incomplete: bool = False) -> "pyarrow.dataset.Dataset":
    """All scores of a folder, in the order of the source: `.to_table(columns=[...])`, `.to_batches()`, ...

    ScoresError where parts are still to be done, unless that is allowed.
    """
    import pyarrow.dataset

    from discopatch.batch.table import score_schema

    folder = open_scores(open_store(out))
    parts = present_parts(folder, allow_incomplete=allow_incomplete)
    filesystem, _ = folder.store.place("")
    paths = [folder.store.place(file_of(part))[1] for part in parts]
    schema = score_schema(folder.manifest.components, folder.manifest.features)
    return pyarrow.dataset.dataset(paths, schema=schema, format="parquet", filesystem=filesystem)


def present_parts(folder: ScoresFolder, *, allow_incomplete: bool = False) -> list[Part]:
    parts = folder.present()
    if len(parts) < len(folder.parts) and not allow_incomplete:
        raise ScoresError(
            f"{folder.store.name} has {len(parts):,} of {len(folder.parts):,} parts: run the same command again until "
            "all are there, or allow what is incomplete"
        )
    return parts


def read_features(
    out: str | os.PathLike[str] | Store, *, kinds: Collection["Kind"] | None = None, allow_incomplete: bool = False
) -> "Iterator[Features]":
    """The features that were stored, a thousand images at a time, in the order of the source.

    Only images that have a score have features. `kinds` are those that are wanted, by default all that are stored;
    others are empty. They were rounded to float16.
    """
    folder = open_scores(open_store(out))
    layout = folder.manifest.features
    if layout is None:
        raise ScoresError(f"{folder.store.name} was scored without features: score again with --features")
    wanted = [kind for kind in layout.kinds if kinds is None or kind in kinds]
    for part in present_parts(folder, allow_incomplete=allow_incomplete):
        with folder.store.open_parquet(file_of(part)) as file:
            for batch in file.iter_batches(FEATURE_ROWS, columns=[*wanted, "error"], use_threads=False):
                yield layout.features(batch, wanted)
