"""discopatch doctor"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discopatch.cli import options

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"passed": "green", "ok": "green", "failed": "red", "damaged": "red", "missing": "red", "skipped": "yellow"}
FILE_WIDTH = 140  # characters a line where there is no terminal
NONE = "-"
Rows = list[tuple[str, ...]]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for an issue report or a program.")] = False,
    no_test: Annotated[bool, typer.Option("--no-test", help="Leave out the self-test of about ten seconds.")] = False,
) -> None:
    """Say what is installed here and whether it works: what an issue report should carry.

    Nothing is downloaded or sent. Paths of yours are not in it, but with ~ for your home folder.

    Exit status: 0 all is well; 1 the self-test failed, or released weights are damaged; 2 a wrong option.
    """
    from rich.console import Console

    from discopatch.doctor import examine

    errors = Console(stderr=True)
    with options.progress_bar(errors, "looking around") as bar:
        report = examine(test=not no_test, progress=bar.describe)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        console = Console()
        print_report(console if console.is_terminal else Console(width=FILE_WIDTH), report)
    if not report["ok"]:
        raise typer.Exit(1)


def print_report(console: "Console", report: dict[str, Any]) -> None:
    """The report as tables; a part that could not be examined is left out, and stands among the problems."""
    for title, rows in (
        ("versions", version_rows(report["versions"], report["torch"])),
        ("devices", device_rows(report["devices"], report["torch"])),
        ("extras", extra_rows(report["extras"])),
        ("released weights", weights_rows(report["weights"])),
        ("cache", cache_rows(report["cache"])),
        ("self-test", test_rows(report["self_test"])),
    ):
        print_table(console, title, rows)
    print_table(console, "problems", [(each,) for each in report["problems"]])
    if report["ok"]:
        console.print("all is well", style="green", highlight=False)
    else:
        console.print("something is wrong: see the problems above", style="red", highlight=False)


def print_table(console: "Console", title: str, rows: Rows) -> None:
    from rich.table import Table
    from rich.text import Text

    from discopatch.utils import escaped

    if not rows:
        return
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    for _ in rows[0]:
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*(Text(escaped(cell), STYLES.get(cell, "")) for cell in row))
    console.print(table)
    console.print()


def version_rows(versions: dict[str, Any] | None, torch: dict[str, Any] | None) -> Rows:
    if versions is None:
        return []
    rows: Rows = [
        ("discopatch", versions["discopatch"]),
        ("python", f"{versions['python']} ({versions['implementation']})"),
        ("platform", versions["platform"]),
        *((name, version or NONE) for name, version in versions["packages"].items()),
    ]
    if torch is not None:
        built = f"CUDA {torch['cuda']}" if torch["cuda"] else f"ROCm {torch['hip']}" if torch["hip"] else "CPU alone"
        rows.append(("torch is built for", f"{built}, {torch['cpu_capability']}"))
    return rows


def device_rows(devices: dict[str, Any] | None, torch: dict[str, Any] | None) -> Rows:
    if devices is None:
        return []
    from discopatch.doctor.machine import NO_TORCH

    threads = NO_TORCH if torch is None else f"torch takes {torch['threads']}"
    rows: Rows = [
        ("processor", devices["processor"]),
        ("cores", f"{devices['cores']}, of which {devices['usable_cores']} may be used; {threads}"),
        ("memory", size_text(devices["memory"])),
    ]
    for number, gpu in enumerate(devices["gpus"]):
        memory = f"{size_text(gpu['memory'])}, {size_text(gpu['free'])} free"
        rows.append((f"GPU {number}", f"{gpu['name']}, {memory}, compute capability {gpu['capability']}"))
    if not devices["gpus"]:
        rows.append(("GPU", "none that torch can use"))
    kernels = devices["fast_kernels"]
    rows.append(("fast kernels", f"{'there' if kernels['available'] else 'not there'}: {kernels['detail']}"))
    return rows


def extra_rows(extras: dict[str, Any] | None) -> Rows:
    return [
        (name, "installed" if each["installed"] else each["install"], each["gives"], ", ".join(each["missing"]))
        for name, each in (extras or {}).items()
    ]


def weights_rows(weights: dict[str, Any] | None) -> Rows:
    return [
        (name, each["status"], size_text(each["bytes"]), f"sha256 {each['sha256'] or NONE}")
        for name, each in (weights or {}).items()
    ]


def cache_rows(cache: dict[str, Any] | None) -> Rows:
    if cache is None:
        return []
    held = f"{size_text(cache['bytes'])} in {cache['files']:,} files" if cache["exists"] else "not there yet"
    return [(cache["folder"], held)]


def test_rows(self_test: dict[str, Any] | None) -> Rows:
    if self_test is None:
        return []
    if not self_test["steps"]:
        return [(self_test["status"], self_test["detail"])]
    steps = [(each["name"], each["status"], f"{each['seconds']:.1f} s", each["detail"]) for each in self_test["steps"]]
    return [*steps, ("in all", self_test["status"], f"{self_test['seconds']:.1f} s", "")]


def size_text(size: int | None) -> str:
    if size is None:
        return NONE
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
