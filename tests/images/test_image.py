"""Refusals are counted; only when nothing is left is it an error."""

import pytest

from discopatch.errors import ImageError, NoImagesError
from discopatch.images import NamedImage, Refusal, RefusalReason, RefusalReport, accepted, read_images, single

from .samples import photo


def test_the_report_counts_reasons_and_names_the_first_few() -> None:
    report = RefusalReport()
    stream: list[NamedImage | Refusal] = [
        *(NamedImage(str(number), photo()) for number in range(117)),
        Refusal("c.png", RefusalReason.EMPTY, "0 bytes"),
        Refusal("a.jpg", RefusalReason.TRUNCATED, "cut"),
        Refusal("b.jpg", RefusalReason.TRUNCATED, "cut"),
    ]
    assert len(list(accepted(stream, report))) == 117
    assert report
    assert report.count == 3
    assert report.summary() == "3 of 120 images refused: 2 truncated (a.jpg, b.jpg), 1 empty (c.png)"


def test_only_when_nothing_is_left_it_is_an_error() -> None:
    with pytest.raises(NoImagesError, match=r"2 of 2 images refused: 1 empty .*1 not an image"):
        list(accepted(read_images([b"", b"text"]), RefusalReport()))


def test_single_gives_the_image_or_says_why_there_is_none() -> None:
    image = NamedImage("a", photo())
    assert single(iter([image])) is image
    with pytest.raises(NoImagesError):
        single(iter([]))
    with pytest.raises(ImageError, match=r"b\.jpg") as caught:
        single(iter([Refusal("b.jpg", RefusalReason.EMPTY, "0 bytes")]))
    assert caught.value.reason is RefusalReason.EMPTY
