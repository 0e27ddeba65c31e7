"""discopatch doctor"""

import json
from typing import Annotated, Any

import typer

from discopatch.cli import options


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for an issue report or a program.")] = False,
    no_test: Annotated[bool, typer.Option("--no-test", help="Leave out the self-test, which takes seconds.")] = False,
) -> None:
    """Show versions, devices, defaults and missing extras, and test the installation. Add its output to issue reports.

    Nothing is downloaded or sent.

    Exit status: 0 passed; 1 the self-test failed; 2 a wrong option.
    """
    from rich.console import Console

    from discopatch.doctor import examine

    with options.progress_bar(Console(stderr=True), "reading versions") as bar:
        report = examine(test=not no_test, progress=bar.describe)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report)
    if not report["ok"]:
        raise typer.Exit(1)


def print_report(report: dict[str, Any]) -> None:
    """Prints the parts of the report, one line for each of their values; defaults with their reason."""
    from discopatch.utils import escaped

    steps = {each["step"]: f"{each['status']}, {each['seconds']} s  {each['detail']}" for each in report["self_test"]}
    parts = {
        "versions": report["versions"],
        "devices": report["devices"],
        "defaults": {name: "{:<8} {}".format(*text.split(": ", 1)) for name, text in report["defaults"].items()},
        "extras": {name: each["install"] or "installed" for name, each in report["extras"].items()},
        "self-test": steps or {"left out": ""},
    }
    for title, values in parts.items():
        print(title)
        for name, value in values.items():
            print(f"  {escaped(name):<20} {escaped(value)}".rstrip())
    print("no problem found" if report["ok"] else "the self-test failed")
