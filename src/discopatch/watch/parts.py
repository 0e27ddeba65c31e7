"""Predictions as files of Parquet, each of them in one file and no other.

Which predictions a part holds is written to the history before the part is, and that it is there afterwards: whatever
is killed in between, the same part is written again under the same name.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from discopatch.errors import ParameterError
from discopatch.history import Entry, History
from discopatch.results import COMPONENT_WORDS
from discopatch.utils import legible, require, write_atomically

ROWS = 10_000  # of a part, at most
SECONDS = 60.0  # for which a prediction waits for others


class PartWriter:
    """Writes the predictions of one detector that are in no part yet, once they are many or have waited long.

    Predictions that are not in a part are kept in the history, beyond its limit too. OutputError when the disk is full:
    the same is tried again at the next step.
    """

    def __init__(
        self,
        history: History,
        detector: str,
        folder: Path,
        *,
        rows: int = ROWS,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require("pyarrow", extra="parquet")
        if rows < 1:
            raise ParameterError(f"rows is {rows}: a part holds at least 1")
        self.folder = folder.absolute()
        self._history, self._detector, self._rows, self._seconds, self._clock = history, detector, rows, seconds, clock
        with history.transaction() as change:
            self._number = change.detector_number(detector)
        self._written = self._clock()
        self._hold()

    def step(self, *, all_of_them: bool = False) -> None:
        """Writes parts that are full, and, once a minute or where `all_of_them` is asked for, the rest."""
        late = all_of_them or self._clock() - self._written >= self._seconds
        while True:
            self._finish_planned()
            found = self._history.following(self._detector, self._last(), self._rows)
            if not found or (len(found) < self._rows and not late):
                break
            with self._history.transaction() as change:
                change.execute(
                    "INSERT INTO parts (detector, folder, first, last, name) VALUES (?, CAST(? AS TEXT), ?, ?, ?)",
                    *(self._number, str(self.folder), found[0].id, found[-1].id, part_name(found[0].id)),
                )
        if late:
            self._written = self._clock()

    def _last(self) -> int:
        """The number of the last prediction that is in a part."""
        ((last,),) = self._history.rows(
            "SELECT coalesce(max(last), 0) FROM parts WHERE detector = ? AND folder = CAST(? AS TEXT)",
            *(self._number, str(self.folder)),
        )
        return int(last)

    def _finish_planned(self) -> None:
        planned = self._history.rows(
            "SELECT first, last, name FROM parts WHERE detector = ? AND folder = CAST(? AS TEXT) AND NOT written",
            *(self._number, str(self.folder)),
        )
        for first, last, name in planned:
            found = self._history.following(self._detector, first - 1, last - first + 1)
            entries = [entry for entry in found if entry.id <= last]
            write_atomically(self.folder / name, partial(write_part, entries))
            with self._history.transaction() as change:
                change.execute(
                    "UPDATE parts SET written = 1 WHERE detector = ? AND folder = CAST(? AS TEXT) AND first = ?",
                    *(self._number, str(self.folder), first),
                )
            self._hold()

    def _hold(self) -> None:
        """Keeps the history from removing what is in no part yet."""
        with self._history.transaction() as change:
            change.execute(
                "UPDATE detectors SET held_from = (SELECT coalesce(min(first), ?) FROM parts WHERE detector = ?"
                " AND folder = CAST(? AS TEXT) AND NOT written) WHERE id = ?",
                *(self._last() + 1, self._number, str(self.folder), self._number),
            )


def release(history: History, detector: str) -> None:
    """Lets the history remove predictions that are in no part: none are written any more."""
    with history.transaction() as change:
        change.execute("UPDATE detectors SET held_from = NULL WHERE id = ?", change.detector_number(detector))


def part_name(first: int) -> str:
    """A name that no other part has, of whichever history; they sort by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{first:09d}-{token_hex(4)}.parquet"


def write_part(entries: Sequence[Entry], path: Path) -> None:
    """One row a prediction, as in `discopatch score --csv`, with its number and time; every part has these columns."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema(
        [
            ("id", pyarrow.int64()),
            ("time", pyarrow.timestamp("us", tz="UTC")),
            ("detector", pyarrow.string()),
            ("name", pyarrow.string()),
            ("source", pyarrow.string()),
            ("score", pyarrow.float64()),
            ("p_value", pyarrow.float64()),
            ("is_ood", pyarrow.bool_()),
            ("error", pyarrow.string()),
            *((name, pyarrow.float64()) for name in COMPONENT_WORDS),
            ("significant", pyarrow.list_(pyarrow.string())),
        ]
    )
    table = pyarrow.Table.from_pylist([as_row(entry) for entry in entries], schema=schema)
    pyarrow.parquet.write_table(table, path)


def as_row(entry: Entry) -> dict[str, Any]:
    prediction = entry.prediction
    return {
        "id": entry.id,
        "time": datetime.fromtimestamp(entry.time, UTC),
        "detector": legible(entry.detector),
        "name": legible(prediction.name),
        "source": None if entry.source is None else legible(entry.source),
        "score": prediction.score,
        "p_value": prediction.p_value,
        "is_ood": prediction.is_ood,
        "error": None if prediction.error is None else legible(prediction.error),
        **{component.name: component.z for component in prediction.components},
        "significant": [component.name for component in prediction.significant] if prediction.components else None,
    }
