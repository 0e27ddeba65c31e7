"""What an issue report should carry: versions, devices, extras, released weights, the cache, and a self-test.

Nothing here may fail: what one part of it meets is a sentence among the `problems`, and the others go on.
"""

import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from discopatch.doctor.extras import probe_extras, probe_versions
from discopatch.doctor.machine import probe_cache, probe_devices, probe_torch
from discopatch.doctor.private import without_paths
from discopatch.doctor.self_test import NOT_ASKED, run_self_test, skipped
from discopatch.doctor.weights import probe_weights

SCHEMA = 1  # raised where a key of the report changes its meaning or goes; new keys leave it as it is
PROBES: dict[str, Callable[[], Any]] = {
    "versions": probe_versions,
    "torch": probe_torch,
    "devices": probe_devices,
    "extras": probe_extras,
    "weights": probe_weights,
    "cache": probe_cache,
}

Say = Callable[[str], object]


def examine(*, test: bool = True, progress: Say = lambda text: None) -> dict[str, Any]:
    """The report, ready for JSON: `schema`, `ok`, `problems`, a key for each of PROBES, and `self_test`.

    A part that could not be examined is None. `ok` is False where released weights are not those of their digests, or
    the self-test failed; other problems leave it True. No path of the user is in it but with ~ for the home folder.
    """
    problems: list[str] = []
    found: dict[str, Any] = {}
    with redirect_stdout(sys.stderr):  # libraries that print, for the report may go to the standard output
        for name, probe in PROBES.items():
            progress(f"looking at {name}")
            found[name] = probed(name, probe, problems)
        found["self_test"] = skipped(NOT_ASKED)
        if test:
            found["self_test"] = probed("self_test", lambda: run_self_test(progress), problems)
    damaged = damaged_weights(found["weights"])
    problems += damaged
    failed = failed_steps(found["self_test"])
    problems += failed
    ok = not damaged and not failed and found["weights"] is not None and found["self_test"] is not None
    report: dict[str, Any] = without_paths({"schema": SCHEMA, "ok": ok, "problems": problems, **found})
    return report


def probed(name: str, probe: Callable[[], Any], problems: list[str]) -> Any:
    """What the probe finds, or None; errors and the warnings that a user should see become problems."""
    found = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        for category in (UserWarning, RuntimeWarning):
            warnings.simplefilter("always", category)
        try:
            found = probe()
        except Exception as error:  # whatever a broken installation raises
            problems.append(f"{name}: {type(error).__name__}: {error}")
    problems += dict.fromkeys(f"{name}: {each.message}" for each in caught)
    return found


def damaged_weights(weights: dict[str, Any] | None) -> list[str]:
    return [
        f"weights: {name} is not the released file ({each['status']}): install discopatch again"
        for name, each in (weights or {}).items()
        if each["status"] != "ok"
    ]


def failed_steps(self_test: dict[str, Any] | None) -> list[str]:
    steps = [] if self_test is None else self_test["steps"]
    return [f"self_test: {step['name']}: {step['detail']}" for step in steps if step["status"] == "failed"]
