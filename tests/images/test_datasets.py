"""Datasets of torch as sources of images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from discopatch.images import NamedImage, Processes, Refusal, RefusalReason, Workers, list_source, read_images
from tests.samples import new_detector, one_camera

SIDE = 40


class Shades(Dataset[Any]):
    """Images of one shade each, the larger the number the brighter, as (image, label)."""

    def __init__(self, kind: str = "pil", broken: int | None = None) -> None:
        self.kind, self.broken = kind, broken

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        if index == self.broken:
            raise OSError("bad sector")
        pixels = np.full((SIDE, SIDE + 1, 3), 20 * index, np.uint8)
        match self.kind:
            case "pil":
                return Image.fromarray(pixels), index
            case "array":
                return pixels
            case "float":
                return torch.from_numpy(pixels).permute(2, 0, 1) / 255, torch.tensor(index)
            case _:
                return [torch.from_numpy(pixels).permute(2, 0, 1), {"label": index}]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return ((torch.full((3, SIDE, SIDE), shade % 256, dtype=torch.uint8), "label") for shade in range(10**9))


def shades(images: list[NamedImage | Refusal]) -> list[int]:
    return [int(each.pixels[0, 0, 0]) for each in images if isinstance(each, NamedImage)]


@pytest.mark.parametrize("kind", ["pil", "array", "float", "uint8"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_dataset_gives_its_images_in_order_without_labels(kind: str, workers: Workers) -> None:
    found = list(read_images(Shades(kind), workers=workers))
    assert shades(found) == [20 * index for index in range(7)]
    assert {each.pixels.shape for each in found if isinstance(each, NamedImage)} == {(SIDE, SIDE + 1, 3)}


def test_processes_read_a_dataset_as_threads_do() -> None:
    assert shades(list(read_images(Shades(), workers=Processes(2)))) == shades(list(read_images(Shades(), workers=2)))


def test_an_image_that_a_dataset_does_not_give_is_one_refusal() -> None:
    found = list(read_images(Shades(broken=3)))
    assert shades(found) == [0, 20, 40, 80, 100, 120]
    refused = found[3]
    assert isinstance(refused, Refusal)
    assert (refused.name, refused.reason) == ("image-000003", RefusalReason.UNREADABLE)
    assert "bad sector" in refused.error


def test_a_dataset_has_a_length_and_images_are_drawn_evenly() -> None:
    source = list_source(Shades())
    assert source.count == 7
    assert [item.name for item in source.draw(3).items()] == ["image-000000", "image-000002", "image-000004"]


def test_a_dataset_of_paths_is_read(tmp_path: Path) -> None:
    class Paths(Shades):
        def __getitem__(self, index: int) -> Any:
            path = tmp_path / f"{index}.png"
            Image.fromarray(np.full((SIDE, SIDE, 3), index, np.uint8)).save(path)
            return str(path), index

    assert shades(list(read_images(Subset(Paths(), [2, 4])))) == [2, 4]


def test_an_endless_dataset_is_read_lazily() -> None:
    stream = read_images(Endless())
    assert shades([next(stream) for _ in range(3)]) == [0, 1, 2]


def test_a_detector_is_fitted_on_a_dataset_as_on_its_images() -> None:
    pixels = np.stack([each.pixels for each in one_camera(40)])
    dataset = TensorDataset(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.zeros(len(pixels)))
    by_dataset, by_array = (new_detector().fit(each) for each in (dataset, pixels))
    np.testing.assert_array_equal(by_dataset.predict(dataset).scores, by_array.predict(pixels).scores)
