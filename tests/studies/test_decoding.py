"""The studies of decoders, in their smallest form and without a GPU."""

import json
from pathlib import Path

import pytest
from PIL import Image

import decoders
import gpu_decode
from discopatch.images import gpu_decode as decoding
from discopatch.images.samples import crops, sample_photos
from discopatch.pretrained import SMALL_WEIGHTS


@pytest.fixture(autouse=True)
def decoder_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script puts another decoder in its place."""
    monkeypatch.setattr(decoding, "open_decoder", decoding.open_decoder)


def test_pixels_and_stages_are_tabulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu_decode.main(out=tmp_path, only="check,stages", fake=True, tiny=True, batch=8, images=8, workers=1)
    found = json.loads((tmp_path / "gpu_decode.json").read_text())
    assert {row["files"] for row in found["pixels"]} > set(gpu_decode.KINDS)
    assert all(row["mean difference"] == 0 for row in found["pixels"] if "mean difference" in row)
    assert {row["side"] for row in found["stages"]} == {320, 256}
    assert "| headers |" in capsys.readouterr().out


@pytest.mark.slow
def test_shards_become_scores(tmp_path: Path) -> None:
    gpu_decode.main(out=tmp_path, only="stream", fake=True, tiny=True, batch=8, images=8, processes="2")
    found = json.loads((tmp_path / "gpu_decode.json").read_text())
    rows = [row for row in found["stream"] if row["decoder"] == "nvimgcodec"]
    assert {row["side"] for row in rows} == {320, 256}
    assert {row["until"] for row in rows} > {"files in memory", "Parquet, 2 processes"}
    assert all(row["images/s"] > 0 for row in rows)
    assert {row["decoder"] for row in found["parity"]} == {"pillow", "scaled"}


def test_a_photo_becomes_a_large_jpeg() -> None:
    (photo,) = crops(sample_photos(["cat"]), 1, size=100, seed=0)
    data = decoders.enlarge(gpu_decode.jpeg(photo.pixels[:, :80]), 0)
    assert data == decoders.enlarge(gpu_decode.jpeg(photo.pixels[:, :80]), 0)
    assert data.startswith(b"\xff\xd8\xff")


@pytest.mark.slow
def test_decoders_are_compared_by_auroc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decoders, "CORRUPTIONS", ("gaussian_noise", "contrast"))
    for number, image in enumerate(crops(sample_photos(["cat"]), 50, size=128, seed=0)):
        folder = tmp_path / ("normal" if number < 44 else "new")
        folder.mkdir(exist_ok=True)
        Image.fromarray(image.pixels).save(folder / f"{number}.jpg", quality=92)
    decoders.main(
        photos=[str(tmp_path / "normal")],
        new=[str(tmp_path / "new")],
        normal=44,
        test=6,
        severities="1",
        weights=SMALL_WEIGHTS,
        out=tmp_path / "decoders.json",
    )
    sets = json.loads((tmp_path / "decoders.json").read_text())["sets"]
    small, large = sets.values()
    assert small["auroc"]["pillow"] == small["auroc"]["scaled"]
    assert (small["parity"]["compared"], large["parity"]["compared"]) == (0, 44)
    assert capsys.readouterr().out.count("| 1 |") == 2
