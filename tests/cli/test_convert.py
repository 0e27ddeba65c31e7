"""`discopatch convert`: a checkpoint of the paper's authors becomes weights for every other command."""

from pathlib import Path

import pytest

from discopatch.model import Weights
from tests.model.checkpoints import saved, their_network, their_state

from .conftest import Run, assert_usage_error

HOW = ("--normalisation", "group", "--pixels", "unit")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return saved(their_state(their_network("group")), tmp_path)


def test_it_says_what_was_converted_what_was_dropped_and_the_digest(checkpoint: Path, run: Run) -> None:
    out = checkpoint.with_name("theirs.safetensors")
    status, printed, told = run("convert", checkpoint, "-o", out, *HOW)
    assert (status, printed) == (0, "")
    weights = Weights.load(out)
    assert (weights.transform.pixels, weights.discriminator.architecture.normalisation) == ("unit", "group")
    for each in ("10 tensors", "fc.weight, fc.bias", "pixels unit", weights.digest, str(out)):
        assert each in told


def test_what_the_file_does_not_say_must_be_given(checkpoint: Path, run: Run) -> None:
    out = checkpoint.with_name("theirs.safetensors")
    assert_usage_error(run("convert", checkpoint, "-o", out, "--pixels", "unit"), "--normalisation")
    assert_usage_error(run("convert", checkpoint, "-o", out, "--normalisation", "batch"), "--pixels")
    assert not out.exists()


def test_nothing_is_written_under_another_name_or_over_a_file(checkpoint: Path, run: Run) -> None:
    assert_usage_error(run("convert", checkpoint, "-o", checkpoint.with_name("theirs.pt"), *HOW), ".safetensors")
    out = checkpoint.with_name("theirs.safetensors")
    out.write_text("mine")
    assert_usage_error(run("convert", checkpoint, "-o", out, *HOW), "--force")
    assert out.read_text() == "mine"
    assert run("convert", checkpoint, "-o", out, *HOW, "--force").status == 0
