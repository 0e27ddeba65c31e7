"""Two ways to prepare images: one for all, and the mismatched ones behind the published figures."""

from dataclasses import dataclass

from discopatch.benchmark.storage import Storage
from discopatch.benchmark.suites.suite import Cell, OtherSet, Suite
from discopatch.benchmark.ways import Corrupt, Crop, Resize, Store, Way
from discopatch.images import Transform

IMAGENET_C = Storage(85)
ALREADY_RESIZED = Storage(92)  # of the data set at 256 pixels that the authors trained and tested on; not published


@dataclass(frozen=True)
class Protocol:
    """The way of each kind of images.

    Corrupted images are made from test images `before` and `after` the corruption, or lie in files and go the way
    `in_files`. The control of a set sends the test images along its way: what is found then is the way's doing.
    """

    name: str
    fit: Way
    normal: Way
    other: Way
    before: Way
    after: Way
    in_files: Way

    def corrupted(self, cell: Cell) -> Way:
        """Of test images that are corrupted here."""
        return (*self.before, Corrupt(*cell), *self.after)

    def severity_0(self, suite: Suite) -> Way:
        """Of test images that take the whole way of corrupted ones, but are not corrupted."""
        return (*cut_as_imagenet_c(), *self.in_files) if suite.corrupted else (*self.before, *self.after)

    def control(self, other: OtherSet, storages: tuple[Storage, ...]) -> Way:
        """Of test images that come as the set's files came, and go on as these do."""
        sizes = (Resize(Transform(size=size)) for size in other.sizes)
        return (*sizes, Store(storages), *self.other)


def matched(suite: Suite, transform: Transform) -> Protocol:
    """One transform for all, and one last storage, that of the images to fit on."""
    load, finish = (Resize(transform),), stored(suite)
    whole = (*load, *finish)
    return Protocol("matched", fit=load, normal=whole, other=whole, before=load, after=finish, in_files=whole)


def paper(suite: Suite, transform: Transform) -> Protocol:
    """The authors' code: in-distribution images from files made by another resize than all other images take.

    Those come cropped with a Lanczos filter and stored once more; others are squashed with a bilinear filter, and
    ImageNet-C is cut at 224 pixels, stored, and enlarged.
    """
    size = transform.size
    normal = (Resize(Transform(size=size, resample="lanczos")), *(stored(suite) or (Store((ALREADY_RESIZED,)),)))
    squash = (Resize(Transform(size=size, fit="squash", resample="bilinear")),)
    cut = cut_as_imagenet_c()
    return Protocol(
        "paper",
        fit=normal[:1] if stored(suite) else normal,
        normal=normal,
        other=squash,
        before=cut[:-1],
        after=(*cut[-1:], *squash),
        in_files=squash,
    )


def stored(suite: Suite) -> Way:
    """The last step of all that is compared with images that were stored so."""
    return () if suite.stored.quality is None else (Store((suite.stored,)),)


def cut_as_imagenet_c() -> Way:
    """Short side to 256, the middle 224, and a JPEG of quality 85."""
    return Resize(Transform(size=256, resample="bilinear")), Crop(224), Store((IMAGENET_C,))


PROTOCOLS = {"matched": matched, "paper": paper}
