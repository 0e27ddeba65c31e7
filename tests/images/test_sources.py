"""Paths, folders, patterns, images in memory, and any mixture of them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from discopatch import images
from discopatch.images import NoImagesError, Picture, Reason, Refusal

from .samples import encoded, names_of, photo, pixels_of, read, refusal_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five images, and much that is none."""
    for name in ("b.jpg", "a.PNG", "sub/c.tif", "sub/deep/d.webp", "z.bmp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(photo(), {"jpg": "JPEG", "tif": "TIFF"}.get(name[-3:], name[name.index(".") + 1 :])))
    for name in ("notes.txt", ".hidden.jpg", "._a.PNG", ".cache/x.jpg", "Thumbs.db", "sub/labels.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not an image")
    return tmp_path


def relative(stream: list[Picture | Refusal], folder: Path) -> list[str]:
    assert all(isinstance(item, Picture) for item in stream)
    return [str(Path(name).relative_to(folder)) for name in names_of(stream)]


def test_a_folder_gives_its_images_to_the_bottom_in_the_order_of_names(folder: Path) -> None:
    expected = ["a.PNG", "b.jpg", "sub/c.tif", "sub/deep/d.webp", "z.bmp"]
    assert relative(read(folder), folder) == expected
    assert relative(read(str(folder)), folder) == expected


def test_folders_are_walked_in_the_order_of_sorted_paths(folder: Path) -> None:
    every = sorted(path for path in folder.rglob("*") if path.suffix in {".PNG", ".jpg", ".tif", ".webp", ".bmp"})
    visible = [path for path in every if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    assert names_of(read(folder)) == [str(path) for path in visible]


def test_a_linked_folder_is_followed_but_never_in_a_circle(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "e.png").write_bytes(encoded(photo(), "PNG"))
    (folder / "link").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    assert "link/e.png" in relative(read(folder), folder)
    assert len(read(folder)) == 6


def test_patterns_find_files_and_double_stars_look_into_folders(folder: Path) -> None:
    assert relative(read(f"{folder}/*.jpg"), folder) == ["b.jpg"]
    assert relative(read(f"{folder}/*"), folder) == ["a.PNG", "b.jpg", "z.bmp"]
    assert len(read(f"{folder}/**/*")) == 5
    assert relative(read(f"{folder}/**/[cd].*"), folder) == ["sub/c.tif", "sub/deep/d.webp"]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "photo[1].png"
    path.write_bytes(encoded(photo(), "PNG"))
    assert names_of(read(path)) == [str(path)]


def test_a_single_file_needs_no_extension(tmp_path: Path) -> None:
    (tmp_path / "upload").write_bytes(encoded(photo(), "PNG"))
    assert np.array_equal(pixels_of(tmp_path / "upload"), photo())


def test_a_source_without_images_is_an_error_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(NoImagesError, match="no such file"):
        images.open(tmp_path / "nowhere")
    with pytest.raises(NoImagesError, match=r"no images in the folder .* tar shards"):
        images.open(tmp_path)
    with pytest.raises(NoImagesError, match="check the pattern"):
        images.open(f"{tmp_path}/*.jpg")
    with pytest.raises(TypeError, match="give a path"):
        images.open(3)


def test_inside_a_list_a_source_without_images_is_a_refusal(tmp_path: Path) -> None:
    stream = read([tmp_path / "nowhere", tmp_path, f"{tmp_path}/*.jpg", photo()])
    assert [getattr(item, "reason", None) for item in stream] == [Reason.MISSING] * 3 + [None]


def test_sources_mix_and_nest(folder: Path) -> None:
    mixture = [
        folder / "b.jpg",
        [photo(), (Image.fromarray(photo()), f"{folder}/*.bmp")],
        encoded(photo(), "PNG"),
    ]
    names = names_of(read(mixture))
    assert names == [f"{folder}/b.jpg", "image-000000", "image-000001", f"{folder}/z.bmp", "image-000002"]


def test_generators_are_sources(folder: Path) -> None:
    assert len(read(path for path in (folder / "sub", folder / "b.jpg"))) == 3


def test_pictures_keep_their_names_and_refusals_their_reasons() -> None:
    stream = [Picture("mine", photo()), Refusal("lost", Reason.EMPTY, "0 bytes")]
    again = read(stream)
    assert names_of(again) == ["mine", "lost"]
    assert again[1] == stream[1]


def test_arrays_of_every_accepted_type_give_the_same_picture() -> None:
    for same in (photo(), photo().astype(np.uint16) * 257, photo() / 255, (photo() / 255).astype(np.float32)):
        assert np.array_equal(pixels_of(same), photo())
        assert np.array_equal(pixels_of(same.astype(same.dtype.newbyteorder())), photo())


def test_arrays_of_every_accepted_shape_are_read() -> None:
    grey = photo()[:, :, 0]
    opaque = np.concatenate([photo(), np.full((48, 64, 1), 255, np.uint8)], axis=2)
    for same in (grey, grey[:, :, None]):
        assert np.array_equal(pixels_of(same), np.repeat(grey[:, :, None], 3, axis=2))
    assert np.array_equal(pixels_of(opaque), photo())
    assert set(np.unique(pixels_of(grey > 128))) == {0, 255}


def test_a_batch_is_as_many_pictures() -> None:
    stream = read(np.stack([photo(), photo()[::-1]]))
    assert names_of(stream) == ["image-000000", "image-000001"]
    assert isinstance(stream[1], Picture)
    assert np.array_equal(stream[1].pixels, photo()[::-1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.float16, torch.uint16, torch.bool])
def test_tensors_have_their_channels_first(dtype: torch.dtype) -> None:
    full = {torch.uint8: 255, torch.uint16: 65535}.get(dtype, 1)
    halves = torch.zeros((3, 40, 48), dtype=torch.float64)
    halves[0, :, 24:] = full
    read_back = pixels_of(halves.to(dtype))
    assert (read_back[:, :24] == 0).all()
    assert (read_back[:, 24:] == (255, 0, 0)).all()


def test_tensors_may_be_grey_batched_on_a_graph_or_of_bfloat16() -> None:
    assert pixels_of(torch.rand(40, 48)).shape == (40, 48, 3)
    assert pixels_of(torch.rand(1, 40, 48, requires_grad=True)).shape == (40, 48, 3)
    assert pixels_of(torch.ones(4, 40, 48, dtype=torch.bfloat16)).shape == (40, 48, 3)
    assert len(read(torch.rand(5, 3, 40, 48))) == 5
    assert refusal_of(torch.zeros(40, 48, dtype=torch.int64)).reason is Reason.UNSUPPORTED
    assert refusal_of(torch.zeros(40, 48, 3)).reason is Reason.UNSUPPORTED


def test_a_buffer_that_is_filled_again_and_again_gives_every_picture() -> None:
    def frames() -> Iterator[np.ndarray]:
        buffer = np.zeros((32, 32, 3), np.uint8)
        for level in range(50):
            buffer[:] = level
            yield buffer

    levels = [item.pixels[0, 0, 0] for item in images.open(frames(), workers=4) if isinstance(item, Picture)]
    assert levels == list(range(50))


def test_torch_is_not_imported() -> None:
    code = "import sys, discopatch.images; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
