"""The Dockerfile of the service, read as its stages and their instructions."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


class Instruction(NamedTuple):
    """One instruction, such as RUN, and all that follows on its lines."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """Of the exec form."""
        found: list[str] = json.loads(self.text[self.text.index("[") :])
        return found


def stages() -> list[list[Instruction]]:
    """Each begins with its FROM; comments are left out."""
    text = (DEPLOY / "Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    lines = [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]
    found: list[list[Instruction]] = []
    for line in lines:
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found.append([])
        found[-1].append(Instruction(name, rest))
    return found


def the_one(stage: list[Instruction], name: str) -> Instruction:
    (found,) = (each for each in stage if each.name == name)
    return found


def environment(stage: list[Instruction]) -> dict[str, Any]:
    return dict(pair.split("=", 1) for each in stage if each.name == "ENV" for pair in each.text.split())
