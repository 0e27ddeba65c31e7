"""The terminal recording of the README: the tutorial's commands, run in a terminal, as an SVG that moves.

python studies/record_terminal.py                                # docs/images/terminal.svg, about a minute

The folders are made by the tutorial's own code, and the commands are those that stand there, so that the recording
shows what a reader gets. Time passes faster while a command runs, nothing else is changed. It needs
`pip install 'discopatch[demo,docs]'`.
"""

import codecs
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Annotated

import pyte
import typer

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 108, 40
PROMPT = "$ "
KEY_SECONDS = 0.035  # for each letter that is typed
FASTER = 4  # than it was, while a command runs
LONGEST_PAUSE, SHORTEST_FRAME = 0.6, 0.08  # seconds; longer pauses are cut, and shorter frames left out
REST = 1.2  # seconds after a command
LETTER, LINE, MARGIN, BAR = 8.4, 19, 16, 30  # pixels
BACKGROUND, FOREGROUND, FAINT = "#1b1f24", "#d7dce2", "#8a939e"
COLOURS = {
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#f2cc60",  # as pyte calls yellow
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
    "black": FAINT,
    "white": FOREGROUND,
}
Cell = tuple[str, str, bool]  # character, colour, bold
Row = tuple[Cell, ...]


@dataclass
class Recording:
    """What a screen shows, and since when: its rows are stored whenever one of them changes."""

    screen: pyte.Screen = field(default_factory=lambda: pyte.Screen(COLUMNS, ROWS))
    now: float = 0.0
    frames: list[tuple[float, list[Row]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = pyte.Stream(self.screen)

    def show(self, text: str, seconds: float = 0.0) -> None:
        """Lets so many seconds pass, at most the longest pause, and writes the text."""
        self.now += min(seconds, LONGEST_PAUSE)
        self.stream.feed(text)
        rows = [self._row(number) for number in range(ROWS)]
        if self.frames and self.now - self.frames[-1][0] < SHORTEST_FRAME:
            self.frames[-1] = self.frames[-1][0], rows
        elif not self.frames or self.frames[-1][1] != rows:
            self.frames.append((self.now, rows))

    def type(self, command: str) -> None:
        self.show(PROMPT)
        for letter in command:
            self.show(letter, KEY_SECONDS)
        self.show("\r\n", REST / 3)

    def run(self, command: Sequence[str], folder: Path) -> int:
        """The exit status of the command, whose output is shown as it comes."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave
        )
        os.close(slave)
        decoder, last = codecs.getincrementaldecoder("utf-8")(errors="replace"), time.monotonic()
        try:
            while content := os.read(master, 2**16):
                self.show(decoder.decode(content), (time.monotonic() - last) / FASTER)
                last = time.monotonic()
        except OSError:  # so a terminal ends on Linux
            pass
        finally:
            os.close(master)
        status = process.wait()
        self.now += REST
        return status

    def _row(self, number: int) -> Row:
        found = [self.screen.buffer[number][column] for column in range(COLUMNS)]
        cells = [(each.data, COLOURS.get(each.fg, FOREGROUND), each.bold) for each in found]
        while cells and cells[-1][0] == " ":
            cells.pop()
        return tuple(cells)

    def svg(self, title: str) -> str:
        """The recording: each row as it was from one moment to another; what is left at the end stays."""
        used = max(number for _, rows in self.frames for number, row in enumerate(rows) if row) + 1
        width, height = round(COLUMNS * LETTER + 2 * MARGIN), used * LINE + BAR + MARGIN
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(title)}">',
            "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
            f"white-space:pre;fill:{FOREGROUND}}}.b{{font-weight:700}}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
            *(
                f'<circle cx="{MARGIN + 18 * place}" cy="{BAR / 2}" r="5.5" fill="{colour}"/>'
                for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
            ),
        ]
        for number in range(used):
            parts += self._texts(number)
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _texts(self, number: int) -> list[str]:
        changes = [(since, rows[number]) for since, rows in self.frames]
        shown = [next(group) for _, group in groupby(changes, key=lambda change: change[1])]
        found = []
        for place, (since, row) in enumerate(shown):
            if not row:
                continue
            y = BAR + (number + 0.75) * LINE
            if place + 1 == len(shown):  # seen where nothing moves, too
                hidden, timing = "", show(0, since, "hidden") if since else ""
            else:
                hidden, timing = ' visibility="hidden"', show(since, shown[place + 1][0])
            found.append(f'<text y="{y:g}"{hidden}>{spans(row)}{timing}</text>')
        return found


def show(since: float, until: float, to: str = "visible") -> str:
    return f'<set attributeName="visibility" to="{to}" begin="{since:.2f}s" end="{until:.2f}s"/>'


def spans(row: Row) -> str:
    """The row as spans of one colour, each with its place, whatever width a reader's font has."""
    found, column = [], 0
    for (colour, bold), group in groupby(row, key=lambda cell: cell[1:]):
        text = "".join(cell[0] for cell in group)
        if text.strip():
            indent = len(text) - len(text.lstrip())
            x, words = MARGIN + (column + indent) * LETTER, text.strip()
            style = f' fill="{colour}"' * (colour != FOREGROUND) + ' class="b"' * bold
            found.append(f'<tspan x="{x:.1f}" textLength="{len(words) * LETTER:.1f}"{style}>{escape(words)}</tspan>')
        column += len(text)
    return "".join(found)


def tutorial_steps(page: str) -> tuple[str, list[str]]:
    """The code that makes the two folders, and the commands but for the installation."""
    code = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    shell = re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    commands = [line for block in shell for line in block.splitlines() if line.startswith("discopatch ")]
    return code, commands


def main(
    out: Annotated[Path, typer.Option(help="The SVG file.")] = ROOT / "docs" / "images" / "terminal.svg",
    page: Annotated[Path, typer.Option(help="Whose code and commands are run.")] = ROOT / "docs" / "tutorial.md",
) -> None:
    """Runs the commands in a new folder and draws what a terminal showed."""
    code, commands = tutorial_steps(page.read_text(encoding="utf-8"))
    recording = Recording()
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-c", code], cwd=place, check=True)
        for command in commands:
            recording.type(command)
            status = recording.run([sys.executable, "-m", *shlex.split(command)], Path(place))
            if status:
                raise SystemExit(f"{command} ended with status {status}")
        recording.show(PROMPT)
    out.write_text(recording.svg(f"A terminal: {'; '.join(commands)}"), encoding="utf-8")
    print(f"{out}: {recording.now:.0f} s, {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    typer.run(main)
