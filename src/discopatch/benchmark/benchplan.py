"""What a benchmark run measures, on how much, and the checks that come before the long work."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from discopatch.benchmark.imageset import Digests, ImageSet
from discopatch.benchmark.metrics import RESAMPLES
from discopatch.benchmark.protocols import PROTOCOLS, Protocol
from discopatch.benchmark.storage import Storage
from discopatch.benchmark.suites.order import in_random_order
from discopatch.benchmark.suites.suite import Cell, Files, OtherSet, Suite
from discopatch.fitting import FEWEST_TO_FIT
from discopatch.images import Transform
from discopatch.images.corrupt import CORRUPTIONS, SEVERITIES

MOST_READ = 500


@dataclass(frozen=True)
class BenchPlan:
    """The sizes of everything; none means all that there are."""

    suite: Suite
    transform: Transform
    protocols: tuple[str, ...] = ("matched", "paper")
    fit: int = 600
    test: int | None = None
    other: int | None = None
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severities: tuple[int, ...] = SEVERITIES
    seeds: tuple[int, ...] = (0,)
    resamples: int = RESAMPLES

    def __post_init__(self) -> None:
        check_known("protocol", self.protocols, tuple(PROTOCOLS))
        check_known("corruption", self.corruptions, tuple(CORRUPTIONS))
        check_known("severity", self.severities, SEVERITIES)
        if self.fit < FEWEST_TO_FIT:
            raise ValueError(f"{self.fit} images to fit on: give at least {FEWEST_TO_FIT}")
        check_enough("images to fit on", len(self.suite.fit), self.fit)
        check_enough("test images", len(self.suite.test), self.test)
        for each in self.suite.others:
            check_enough(f"images in {each.name}", len(each.files), self.other)
        for name, severity in self.cells if self.suite.corrupted else ():
            files = self.suite.corrupted[name, severity]
            check_enough(f"images of {name} at severity {severity}", len(files), None)
        if self.suite.corrupted and not self.cells:
            raise ValueError("none of the corruptions and severities asked for is among the corrupted files")

    @property
    def cells(self) -> list[Cell]:
        """Every corruption at every severity; of corrupted images in files, those that are there."""
        wanted = [(name, severity) for name in self.corruptions for severity in self.severities]
        return [cell for cell in wanted if not self.suite.corrupted or cell in self.suite.corrupted]

    def sets(self, protocol: Protocol) -> list["PlannedSet"]:
        """All that is scored, the normal test images first."""
        test = drawn(self.suite.test, self.test)
        found = [PlannedSet("test", "test", ImageSet("test", test, protocol.normal))]
        for other in self.suite.others:
            found += self._other_sets(protocol, other, test)
        control = ImageSet("control corrupted", test, protocol.severity_0(self.suite))
        found.append(PlannedSet(control.name, "route", control, paired=True))
        for cell in self.cells:
            files = drawn(self.suite.corrupted[cell], self.test) if self.suite.corrupted else test
            way = protocol.in_files if self.suite.corrupted else protocol.corrupted(cell)
            images = ImageSet(f"{cell[0]}/{cell[1]}", files, way)
            found.append(PlannedSet(images.name, "covariate", images, cell=cell, paired=not self.suite.corrupted))
        return found

    def _other_sets(self, protocol: Protocol, other: OtherSet, test: Files) -> list["PlannedSet"]:
        files = drawn(other.files, self.other)
        along = ImageSet(f"control {other.name}", test, protocol.control(other, storages_of(files)))
        return [
            PlannedSet(other.name, other.group, ImageSet(other.name, files, protocol.other)),
            PlannedSet(along.name, "route", along, paired=True),
        ]

    def fit_set(self, protocol: Protocol, seed: int) -> ImageSet:
        """Other images to fit on with each seed."""
        chosen = in_random_order(self.suite.fit, seed=seed, count=self.fit)
        return ImageSet(f"fit {seed}", tuple(chosen), protocol.fit)

    def protocol(self, name: str) -> Protocol:
        """Of this suite."""
        return PROTOCOLS[name](self.suite, self.transform)

    def check(self, digests: Digests, *, workers: int) -> None:
        """Reads every file once: the same image on both sides is an error, before anything is measured."""
        protocol = self.protocol(self.protocols[0])
        fit = [file for seed in self.seeds for file in self.fit_set(protocol, seed).files]
        tested = [file for planned in self.sets(protocol) for file in planned.images.files]
        digests.learn([*fit, *tested], workers=workers)
        seen = {digests.known[file]: file for file in fit}
        both = {file.name: seen[digests.known[file]].name for file in tested if digests.known[file] in seen}
        if both:
            tested_as, fitted_as = next(iter(both.items()))
            raise ValueError(
                f"{len(both)} images are both fitted and tested, such as {tested_as}, which is {fitted_as}: "
                "take them out of one of the two folders"
            )


@dataclass(frozen=True)
class PlannedSet:
    """A set that is scored, and what for."""

    name: str
    group: str  # test, near, far, control, covariate, or route for test images along the way of others
    images: ImageSet
    cell: Cell | None = None
    paired: bool = False  # with the test images, one for one


@cache
def storages_of(files: Files) -> tuple[Storage, ...]:
    """How the files of a set are stored: read off all of them, or off some hundreds of many."""
    return tuple(Storage.of(file.read()) for file in drawn(files, MOST_READ))


def drawn(files: Files, count: int | None) -> Files:
    """The first so many of an order that hangs on nothing but their number; all, in their own order, without one."""
    if count is None or count >= len(files):
        return files
    order = np.random.default_rng(0).permutation(len(files))[:count]
    return tuple(files[place] for place in sorted(order))


def check_known(what: str, given: Sequence[object], known: Sequence[object]) -> None:
    """Each is one of the known ones."""
    for each in given:
        if each not in known:
            raise ValueError(f"unknown {what} {each!r}: choose from {', '.join(map(str, known))}")


def check_enough(what: str, there: int, asked: int | None) -> None:
    """There are some, and no fewer than asked."""
    if there == 0:
        raise ValueError(f"no {what}: check the folder with `discopatch data check`")
    if asked is not None and there < asked:
        raise ValueError(f"{there:,} {what}, {asked:,} were asked for: add images or ask for fewer")
