"""The results as one JSON, written again after each piece; a piece that is there already is not made again."""

import hashlib
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from discopatch.benchmark.studies.clock import Clock, OutOfTime
from discopatch.benchmark.studies.plan import Plan
from discopatch.files import write_json

Report = dict[str, Any]

FORMAT = 1
NAME = "studies.json"


class Ledger:
    """Kept beside the trainings, from where the next call with the same plan goes on, and copied to `out`."""

    def __init__(self, kept: Path, out: Path, plan: Plan, clock: Clock) -> None:
        self._paths = (kept / f"studies-{key_of(plan)}.json", out / NAME)
        self._clock = clock
        self.report: Report = {"format": FORMAT}
        if self._paths[0].exists():
            self.report = json.loads(self._paths[0].read_text())
        self.report["plan"] = plan.to_dict()

    def keep(self, section: str, name: str, key: str, make: Callable[[], Report]) -> None:
        """Makes that piece, unless it is there and was made from what the key stands for."""
        pieces = self.report.setdefault(section, {})
        if pieces.get(name, {}).get("key") == key:
            return
        what = f"{section}, {name}"
        with self.attempt(what):
            with self._clock.timed(what):
                found = make()
            pieces[name] = {"key": key, "seconds": self._clock.spent[what], **found}
            self.write()

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """A piece that fails is noted with its error, and stops no other: time on a GPU is too short for that."""
        failed = self.report.setdefault("failed", {})
        try:
            yield
            failed.pop(what, None)
        except OutOfTime:
            raise
        except Exception as error:
            failed[what] = "".join(traceback.format_exception(error))
            self._clock.tell(f"{what} FAILED: {error}")
            self.write()

    def write(self) -> None:
        """To all folders."""
        for path in self._paths:
            write_json(path, self.report)


def key_of(plan: Plan) -> str:
    """Stands for all that figures depend on, so that none of another plan is ever found among them."""
    values = json.dumps([FORMAT, {**plan.to_dict(), "seeds": None}], sort_keys=True)
    return hashlib.sha256(values.encode()).hexdigest()[:8]
