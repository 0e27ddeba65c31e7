"""--max-pixels and --max-bytes, on every command that reads images."""

from pathlib import Path

import pytest
import typer

from discopatch.cli.options import MAX_BYTES, MAX_PIXELS, size_of
from discopatch.images import DEFAULT_LIMITS
from tests.samples import save_images, some_images, tiny_weights

from .conftest import Run, assert_error, assert_usage_error


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1500", 1500),
        ("200M", 200_000_000),
        ("2G", 2_000_000_000),
        ("1.5k", 1500),
        ("256Mi", 2**28),
        ("256 MiB", 2**28),
        ("2gb", 2 * 10**9),
    ],
)
def test_sizes_have_units(text: str, number: int) -> None:
    assert size_of(text, "--max-bytes") == number


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1e9", "2X", "M", "0.1"])
def test_what_is_no_size_is_an_error(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        size_of(text, "--max-bytes")


def test_the_help_names_the_limits_that_are_in_force() -> None:
    assert f"{DEFAULT_LIMITS.max_pixels:,}" in MAX_PIXELS
    assert f"{DEFAULT_LIMITS.max_bytes:,}" in MAX_BYTES


@pytest.mark.parametrize("command", ["fit", "score", "explain", "export", "train", "bench"])
def test_every_command_that_reads_images_has_the_options(run: Run, command: str) -> None:
    out = run(command, "--help").out
    assert "--max-pixels" in out
    assert "--max-bytes" in out


def test_score_refuses_what_exceeds_them(run: Run, tmp_path: Path) -> None:
    tiny_weights().save(tmp_path / "tiny.safetensors")
    save_images(tmp_path / "photos", some_images(1))
    command = ["score", tmp_path / "photos", "--weights", tmp_path / "tiny.safetensors", "--json"]
    assert "--max-pixels" in run(*command, "--max-pixels", "6k").out  # 80 x 80 are more
    assert run(*command, "--max-pixels", "7k").status == 0
    assert "--max-bytes" in run(*command, "--max-bytes", "100").out
    assert_usage_error(run(*command, "--max-bytes", "much"), "--max-bytes", "200M")


def test_explain_refuses_a_folder_before_it_looks_for_the_detector(run: Run, tmp_path: Path) -> None:
    save_images(tmp_path / "photos", some_images(1))
    finished = run("explain", tmp_path / "photos", "--detector", tmp_path / "none", "-o", tmp_path / "heatmap.png")
    assert_error(finished, str(tmp_path / "photos"), "one image", "--report")
