"""Which normal images belong together: frames of one burst, shots of one scene, pictures of one part."""

import re
from collections.abc import Callable, Hashable, Sequence
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ParameterError

Rule = Literal["folder", "name"] | Callable[[str], Hashable]
Groups = Rule | Literal["auto"] | Sequence[Hashable] | NDArray[Any]  # a rule, or one id for each image

TRAILING_NUMBER = re.compile(r"[\s_.\-()#]*\d+\)?$")


def group_names(names: Sequence[str], by: Rule) -> list[Hashable]:
    """The group of each image by its name: its parent `folder`, its `name` up to the trailing number, or a function."""
    if callable(by):
        return [by(name) for name in names]
    if by == "folder":
        return [str(PurePath(name).parent) for name in names]
    if by == "name":
        return [without_number(PurePath(name)) for name in names]
    raise ParameterError(f"groups={by!r}: give 'folder', 'name', 'auto', a function of the name, or one id an image")


def without_number(path: PurePath) -> str:
    """Such as `day-1/part-17` for `day-1/part-17_0003.png`."""
    return str(path.with_name(TRAILING_NUMBER.sub("", path.stem) or path.stem))


def group_numbers(groups: Sequence[Hashable] | NDArray[Any]) -> NDArray[np.intp]:
    """The groups as numbers from 0, in the order in which they come."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    return np.array([numbers[name] for name in groups], np.intp)
