"""What a report holds, where any part may be missing."""

from collections.abc import Iterable, Mapping
from typing import Any

Report = Mapping[str, Any]

GROUPS = ("near", "far", "covariate")  # those that have means
PROTOCOLS = ("matched", "paper")


def look(part: Any, *keys: str) -> Any:
    """What lies under the keys, one after the other; none where one of them is missing."""
    for key in keys:
        if not isinstance(part, Mapping) or key not in part:
            return None
        part = part[key]
    return part


def methods(report: Report) -> list[str]:
    """All of them, in the order of the report."""
    return list(report["methods"])


def protocols(report: Report) -> list[str]:
    """Those that were run, the matched one first."""
    return sorted(report["protocols"], key=lambda name: (_place(name, PROTOCOLS), name))


def groups(report: Report) -> list[str]:
    """Those with a mean in any protocol."""
    there = {name for protocol in report["protocols"].values() for name in look(protocol, "means") or {}}
    return sorted(there, key=lambda name: (_place(name, GROUPS), name))


def sets(report: Report, *wanted: str) -> dict[str, str]:
    """The sets of other images and their groups: those of the wanted groups, in the order of these."""
    there = {
        name: found["group"]
        for protocol in protocols(report)
        for name, found in (look(report, "protocols", protocol, "sets") or {}).items()
    }
    return {name: group for group in wanted for name, its in there.items() if its == group}


def severities(corruptions: Mapping[str, Iterable[str]]) -> list[str]:
    """Those of any corruption, the mildest first."""
    return sorted({severity for levels in corruptions.values() for severity in levels}, key=int)


def measured(report: Report, protocol: str, group: str, method: str, *, of: str | None = None) -> Mapping[str, Any]:
    """The metrics of a method: of one set, or the mean of the group."""
    found = look(report, "protocols", protocol)
    keys = ("means", group, method) if of is None else ("sets", of, "methods", method)
    return look(found, *keys) or {}


def _place(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)
