"""Kills commands at random moments and looks at what is left: nothing may be lost, nothing half-written.

python studies/kills.py                          # 20 kills of each of fit, score, export, train and bench
python studies/kills.py --kills 3 --command fit

Half of the kills come while something is being written, half at any moment; every fourth is that of a process that
was started as a user starts it, imports and all, and every second meets an output from before. After each kill the
same command runs to its end, and must leave what an undisturbed one leaves. The table of docs/guarantees.md.
"""

import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from discopatch.utils import write_json
from killing import COMMANDS, Commands, Harness, Killed, Material, cases


@dataclass
class Tally:
    """The kills of one command, counted."""

    kills: int = 0
    while_writing: int = 0  # something unfinished was left
    new_output: int = 0  # another than before, and whole
    cleaned: int = 0  # unfinished things that the next run removed or went on with
    wrong: list[str] = field(default_factory=list)

    def add(self, killed: Killed) -> None:
        self.kills += 1
        self.while_writing += killed.left > 0
        self.new_output += killed.changed
        self.cleaned += killed.left
        self.wrong += killed.wrong


def main(
    kills: Annotated[int, typer.Option(help="Of each command.")] = 20,
    command: Annotated[list[str] | None, typer.Option(help="Repeat for several. Default: all five.")] = None,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the counts, those of other commands stay in it.")
    ] = Path("docs/results/kills.json"),
) -> None:
    """Prints a table with a row a command; the status is 1 if anything was wrong."""
    tallies: dict[str, Tally] = {}
    console = Console()
    with TemporaryDirectory(prefix="kills-") as folder, Commands() as commands:
        root = Path(folder)
        found = cases(Material.make(root / "material"), root / "detector")
        for name in dict.fromkeys(("fit", *(command or COMMANDS))):
            began, tally = time.monotonic(), Tally()
            harness = Harness(commands, found[name], root / name)
            if name == "fit":
                shutil.copy(root / "fit/reference/output/detector", root / "detector")
            rng = np.random.default_rng([seed, *name.encode()])
            for number in range(kills if name in (command or COMMANDS) else 0):
                writing, existing = number % 2 == 0, number % 4 < 2
                killed = harness.kill(rng, writing=writing, fresh=number % 4 == 3, existing=existing)
                tally.add(killed)
                print(name, number + 1, killed, flush=True)
            if tally.kills:
                tallies[name] = tally
                console.print(f"{name}: {tally.kills} kills in {time.monotonic() - began:.0f} s", highlight=False)
    console.print(table(tallies))
    for name, tally in tallies.items():
        for each in tally.wrong:
            console.print(f"{name}: {each}", markup=False)
    if out is not None:
        known = json.loads(out.read_text())["commands"] if out.exists() else {}
        write_json(out, {"seed": seed, "commands": known | {name: vars(tally) for name, tally in tallies.items()}})
    if any(tally.wrong for tally in tallies.values()):
        raise typer.Exit(1)


def table(tallies: dict[str, Tally]) -> Table:
    made = Table("command", "kills", "while writing", "output new and whole", "unfinished, then cleaned", "wrong")
    for name, tally in tallies.items():
        figures = (tally.kills, tally.while_writing, tally.new_output, tally.cleaned, len(tally.wrong))
        made.add_row(name, *map(str, figures))
    return made


if __name__ == "__main__":
    typer.run(main)
