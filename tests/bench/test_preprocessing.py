"""Pipelines are their steps one after the other; protocols say which images take which steps."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discopatch.bench.dataset import ImageFile, ImageSet
from discopatch.bench.preprocessing import (
    LOSSLESS,
    Corrupt,
    Crop,
    Pipeline,
    Protocol,
    Storage,
    Store,
    describe_step,
    matched,
    paper,
)
from discopatch.corruptions import corrupt
from discopatch.demo import sample_photos
from discopatch.images import Transform

TRANSFORM = Transform(size=96)
PHOTO = sample_photos(["coffee"])["coffee"]
MakeProtocol = Callable[[Transform], Protocol]


def test_a_pipeline_is_its_steps_one_after_the_other(tmp_path: Path) -> None:
    pipeline: Pipeline = (TRANSFORM, Corrupt("fog", 2), Store((Storage(80),)))
    by_hand = Storage(80).store(corrupt(TRANSFORM(PHOTO), "fog", 2, seed=7))
    path = tmp_path / "photo.png"
    Image.fromarray(PHOTO).save(path)
    images = ImageSet("photo", (ImageFile(path.name, path),), pipeline, first=7)
    assert np.array_equal(images.load()[0], by_hand)


def test_pipelines_that_differ_are_described_differently() -> None:
    pipelines: list[Pipeline] = [
        (TRANSFORM,),
        (Transform(size=96, resample="bilinear"),),
        (TRANSFORM, Store((Storage(92),))),
        (TRANSFORM, Store((Storage(92, 0),))),
        (TRANSFORM, Corrupt("fog", 1)),
        (TRANSFORM, Corrupt("fog", 2)),
        (TRANSFORM, Crop(64)),
    ]
    assert len({str([describe_step(step) for step in pipeline]) for pipeline in pipelines}) == len(pipelines)


@pytest.mark.parametrize("stored", [LOSSLESS, Storage(92)])
def test_matched_gives_all_images_the_same_steps(stored: Storage) -> None:
    protocol = matched(TRANSFORM, stored)
    assert protocol.normal == protocol.other == protocol.uncorrupted(files=False)
    clean = [step for step in protocol.corrupted("fog", 3) if not isinstance(step, Corrupt)]
    assert tuple(clean) == protocol.normal
    assert protocol.normal == (*protocol.fit, *([] if stored == LOSSLESS else [Store((stored,))]))


def test_the_papers_protocol_is_the_authors_code() -> None:
    protocol = paper(TRANSFORM)
    normal, other = protocol.normal[0], protocol.other[0]
    assert normal == Transform(size=96, fit="crop", resample="lanczos")
    assert other == Transform(size=96, fit="squash", resample="bilinear")
    assert protocol.normal[1:] == (Store((Storage(92),)),)
    assert protocol.fit == protocol.normal
    assert paper(TRANSFORM, Storage(80)).normal[1:] == (Store((Storage(80),)),)
    assert paper(TRANSFORM, Storage(80)).fit == protocol.normal[:1]
    kinds = [type(step).__name__ for step in protocol.corrupted("fog", 3)]
    assert kinds == ["Transform", "Crop", "Corrupt", "Store", "Transform"], (
        "cropped at 224, stored, and only then enlarged"
    )
    assert protocol.uncorrupted(files=False) == (*protocol.before, *protocol.after)


@pytest.mark.parametrize("make_protocol", [matched, paper])
def test_a_control_has_the_history_of_the_sets_files_and_then_their_steps(make_protocol: MakeProtocol) -> None:
    protocol = make_protocol(TRANSFORM)
    pipeline = protocol.control((40, 80), (Storage(75), LOSSLESS))
    assert pipeline[:3] == (Transform(size=40), Transform(size=80), Store((Storage(75), LOSSLESS)))
    assert pipeline[3:] == protocol.other
    pipeline = protocol.uncorrupted(files=True)
    assert [type(step).__name__ for step in pipeline[:3]] == ["Transform", "Crop", "Store"], "as ImageNet-C was made"
    assert pipeline[3:] == protocol.other
