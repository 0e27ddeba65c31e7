"""Methods of a user's own in `discopatch bench`: a file of Python registers baselines, heads and encoders by name.

    from discopatch.bench.baselines import Baseline
    from discopatch.bench.plugins import register

    @register("norm")
    class Norm(Baseline): ...  # or a Head, or an OutsideNetwork that is made without arguments

An installed package names its module in the entry-point group `discopatch.plugins`.
"""

import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TypeVar

from discopatch.bench.baselines import BASELINES, Baseline
from discopatch.bench.methods import (
    CLASSIFIER_METHODS,
    DISCRIMINATOR_METHODS,
    ENCODERS,
    OURS,
    OUTSIDE_METHODS,
    PLUGIN_DIGESTS,
)
from discopatch.bench.networks.fetch import BACKBONES
from discopatch.bench.tables import split_discriminator
from discopatch.encoders import OutsideNetwork
from discopatch.errors import ParameterError
from discopatch.heads import HEADS, Head, LogitHead
from discopatch.pretrained import PRETRAINED
from discopatch.utils import file_digest

Made = TypeVar("Made", bound=Callable[..., Baseline | Head | OutsideNetwork])

GROUP = "discopatch.plugins"  # of entry points
NAME = re.compile(r"[a-z][a-z0-9_-]*")

_files: dict[str, str] = {}  # digest by file, of everything that was loaded


def register(name: str) -> Callable[[Made], Made]:
    """A decorator that gives the name to a class derived from `Baseline` or `Head`, or to an encoder.

    An encoder is a class derived from `OutsideNetwork`, or a function that returns one, without arguments.
    """
    taken = {*BASELINES, *HEADS, *ENCODERS, *BACKBONES, *PRETRAINED, OURS}
    if name in taken or not NAME.fullmatch(name) or split_discriminator(name):
        problem = "is there already" if name in taken else "is no name of a method (small letters, digits, - and _)"
        raise ParameterError(f"{name!r} {problem}: choose another name")

    def add(made: Made) -> Made:
        groups: list[list[str]] = []
        if not isinstance(made, type) or issubclass(made, OutsideNetwork):
            ENCODERS[name] = made  # type: ignore[assignment]  # what it returns is checked where it is made
        elif issubclass(made, Head):
            HEADS[name] = made
            alone = [DISCRIMINATOR_METHODS]  # of the discriminator, which has logits
            groups = alone if issubclass(made, LogitHead) else [*alone, CLASSIFIER_METHODS, OUTSIDE_METHODS]
        elif issubclass(made, Baseline):
            BASELINES[name] = made
            others = [] if made.needs_classifier else [DISCRIMINATOR_METHODS, OUTSIDE_METHODS]
            groups = [CLASSIFIER_METHODS, *others]
        else:
            raise ParameterError(f"{name!r} is a {made.__name__}: derive it from Baseline, Head or OutsideNetwork")
        for group in groups:
            group.append(name)
        file = getattr(sys.modules.get(made.__module__), "__file__", None)
        if file:
            _files[file] = PLUGIN_DIGESTS[name] = file_digest(Path(file))
        return made

    return add


def load_plugins(paths: Sequence[Path]) -> dict[str, str]:
    """Imports installed plugins and these files; returns the digest of each file by its name."""
    _files.clear()
    for entry in metadata.entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:  # anything that code of others raises
            raise ParameterError(
                f"the plugin {entry.value} of an installed package cannot be loaded ({type(error).__name__}: {error}): "
                "correct or uninstall it"
            ) from error
    for path in paths:
        if path.suffix != ".py" or not path.is_file():
            raise ParameterError(f"no plugin at {path}: give a file of Python, --plugin FILE.py")
        file = str(path.resolve())
        if file in _files:
            raise ParameterError(f"the plugin {path} is given twice: leave one out")
        _files[file] = file_digest(path)
        spec = spec_from_file_location(f"discopatch_plugin_{path.stem}_{len(_files)}", file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = module_from_spec(spec)
        with plugin_errors():
            spec.loader.exec_module(module)
    return {Path(file).name: digest[:16] for file, digest in _files.items()}


@contextmanager
def plugin_errors() -> Iterator[None]:
    """Turns an error that passed through code of a plugin into a ParameterError that names its file and line."""
    try:
        yield
    except Exception as error:  # anything that code of a user raises
        places = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError):
            places.append((error.filename or "", error.lineno))
        for file, line in reversed(places):
            if file in _files:
                text = f"{type(error).__name__}: {error}"
                raise ParameterError(
                    f"{file}, line {line}: {text}: correct the plugin (DISCOPATCH_TRACEBACK=1 shows the whole error)"
                ) from error
        raise
