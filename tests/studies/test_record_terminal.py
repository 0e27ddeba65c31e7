"""A recording shows what a terminal showed, in the order in which it did, and its end where nothing moves."""

import sys
from pathlib import Path
from xml.etree import ElementTree

from record_terminal import COLUMNS, LONGEST_PAUSE, Recording, tutorial_steps

SVG = "{http://www.w3.org/2000/svg}"
PROGRAM = (
    "import shutil, time\n"
    "print('half', end='', flush=True); time.sleep(0.5)\n"
    "print('\\rdone\\033[32m in green\\033[0m & <well>', shutil.get_terminal_size().columns)"
)


def shown(text: ElementTree.Element) -> str:
    return "".join(text.itertext())


def test_what_was_overwritten_is_hidden_at_the_end_and_what_is_left_is_seen(tmp_path: Path) -> None:
    recording = Recording()
    recording.type("program")
    assert recording.run([sys.executable, "-c", PROGRAM], tmp_path) == 0
    texts = list(ElementTree.fromstring(recording.svg("A title")).iter(f"{SVG}text"))
    last = [shown(text) for text in texts if text.get("visibility") != "hidden"]
    assert last == ["$ program", f"donein green& <well> {COLUMNS}"]  # each colour has its own place
    (half,) = (text for text in texts if shown(text) == "half")
    (timing,) = half.iter(f"{SVG}set")
    begin, end = (float(timing.attrib[name].rstrip("s")) for name in ("begin", "end"))
    assert 0 < end - begin <= LONGEST_PAUSE
    assert len({text.get("y") for text in texts}) == 2


def test_steps_are_the_first_code_and_the_commands_without_the_installation() -> None:
    blocks = ("bash\npip install x", "python\nmake()", "bash\ndiscopatch fit a -o b", "python\nuse()")
    page = "".join(f"```{block}\n```\n" for block in blocks)
    assert tutorial_steps(page) == ("make()\n", ["discopatch fit a -o b"])
