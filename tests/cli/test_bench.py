"""`discopatch bench`, from the layout of the images to the last table."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from discopatch.bench.networks.resnet50 import convert_keras
from discopatch.model import write_safetensors
from tests.bench.bench_samples import save_images
from tests.bench.imagenet_samples import make_imagenet
from tests.bench.networks.samples import keras_variables
from tests.cli.conftest import Run, assert_error
from tests.samples import tiny_weights

SMALL = ("--fit-images", 30, "--test-images", 8, "--workers", 1, "--device", "cpu", "--no-figures")
FEW = ("--corruption", "gaussian_noise", "--corruption", "contrast", "--severity", 5)
LOGIT = ("--methods", "discopatch/logit")
FEWEST = ("--other-images", 2, "--corruption", "contrast", "--severity", 5, "--protocol", "matched")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    levels = [("gaussian_noise", 5), ("contrast", 5)]
    return make_imagenet(tmp_path_factory.mktemp("openood") / "data", levels=levels)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    tiny_weights().save(path)
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own folders: normal images and others."""
    root = tmp_path_factory.mktemp("folders")
    save_images(root / "normal", ["temple"], 50, seed=0)
    save_images(root / "coins", ["coins"], 9, seed=1)
    return root


def read_results(out: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((out / "results.json").read_text())
    return results


def steps(results: dict[str, Any], name: str) -> list[str]:
    """The preprocessing steps of a set under the matched protocol."""
    return [next(iter(step)) for step in results["data"]["matched"][name]["way"]]


@pytest.mark.slow
def test_the_layout_of_openood_is_measured_from_end_to_end(run: Run, tree: Path, weights: Path, tmp_path: Path) -> None:
    command = ("bench", "--suite", "imagenet", "--data", tree, "--weights", weights, "--methods", "discopatch/*")
    finished = run(*command, *SMALL, *FEW, "-o", tmp_path)
    assert finished.status == 0, finished.err
    assert all(part in finished.out for part in ("tiny.safetensors/", "components", "n=16"))
    results = read_results(tmp_path)
    assert results["protocols"].keys() == {"matched", "paper"}
    matched = results["protocols"]["matched"]
    assert matched["sets"].keys() == {"ssb_hard", "ninco", "inaturalist", "textures", "openimage_o"}
    assert matched["means"].keys() == {"near", "far", "covariate"}
    assert matched["corruptions"].keys() == {"gaussian_noise", "contrast"}
    assert steps(results, "control corrupted")[:3] == ["resize", "crop", "store"], "as the files of ImageNet-C were"
    assert {path.name for path in tmp_path.iterdir()} >= {"results.json", "results.csv", "tables.md", "tables.tex"}
    with (tmp_path / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) > 100


@pytest.mark.slow
def test_a_run_that_is_killed_continues_to_the_same_results(folders: Path, weights: Path, tmp_path: Path) -> None:
    command = ["bench", "--suite", "folder", "--normal", folders / "normal", "--other", folders / "coins", *SMALL]
    command += ["--weights", weights, "--methods", "discopatch/*", "--protocol", "matched"]
    command += ["--severity", 1, "--severity", 5]
    command += ["--corruption", "fog", "--corruption", "contrast", "--corruption", "pixelate"]

    def start(out: Path) -> subprocess.Popen[bytes]:
        whole = [sys.executable, "-m", "discopatch", *map(str, command), "-o", str(out)]
        return subprocess.Popen(whole, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    assert start(tmp_path / "whole").wait() == 0
    killed = start(tmp_path / "killed")
    while killed.poll() is None and not (tmp_path / "killed/scores/matched/fog-1.safetensors").exists():
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed/results.json").exists()
    assert start(tmp_path / "killed").wait() == 0
    whole, again = (read_results(tmp_path / name) for name in ("whole", "killed"))
    assert again["protocols"] == whole["protocols"]
    assert again["data"] == whole["data"]


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ResNet-50 of few channels, as `discopatch data fetch` would leave it."""
    folder, converted = tmp_path_factory.mktemp("backbones"), convert_keras(keras_variables())
    header = {"parameters": converted.parameters}
    write_safetensors(folder / "resnet50.safetensors", converted.tensors, kind="backbone", header=header)
    return folder


def test_options_are_recorded_and_what_a_star_cannot_mean_here_is_left_out_with_a_reason(
    run: Run, folders: Path, backbones: Path, tmp_path: Path
) -> None:
    images = ("--normal", folders / "normal", "--other", folders / "coins", "--weights", "natural-small-v2")
    command = ("bench", "--suite", "folder", *images, *SMALL, *FEWEST, "--backbones", backbones)
    finished = run(*command, "--methods", "resnet50/m*,resnet50/knn:k=3", "-o", tmp_path / "out")
    assert finished.status == 0, finished.err
    assert "left out: resnet50/mds" in finished.err
    assert "knn:k=3" in finished.out
    results = read_results(tmp_path / "out")
    assert results["left_out"].keys() == {"resnet50/mds", "resnet50/mds++"}
    assert results["methods"]["resnet50/knn:k=3"]["settings"] == {"k": 3}
    assert "Left out: MDS" in (tmp_path / "out/tables.md").read_text()
    assert_error(run(*command, "--methods", "resnet50/mds", "-o", tmp_path / "named"), "resnet50/mds")
    assert_error(run(*command, "--methods", "resnet50/md*", "-o", tmp_path / "none"), "--methods")


@pytest.mark.parametrize(
    ("change", "mentioned"),
    [
        (("--suite", "cifar"), "'cifar'"),
        (("--methods", "resnet51/energy"), "'resnet51/energy'"),
        (("--methods", "resnet50/knn:K=5"), "K"),
        (("--methods", "resnet50/energy", "--backbones", "nowhere"), "discopatch data fetch resnet50"),
        (("--protocol", "fair"), "'fair'"),
        (("--severity", 6), "severity 6"),
        (("--test-images", 30), "30"),
        (("--other-images", 10), "coins"),
        (("--normal", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_measured_is_an_error_before_the_long_work(
    run: Run, folders: Path, weights: Path, tmp_path: Path, change: tuple[object, ...], mentioned: str
) -> None:
    command = ("bench", "--suite", "folder", "--normal", folders / "normal", "--other", folders / "coins", *SMALL, *FEW)
    methods = () if "--methods" in change else LOGIT
    assert_error(run(*command, "--weights", weights, "-o", tmp_path / "out", *methods, *change), mentioned)
    assert not (tmp_path / "out").exists()


def test_an_image_that_is_both_fitted_and_tested_is_found_by_its_content(
    run: Run, folders: Path, weights: Path, tmp_path: Path
) -> None:
    shutil.copytree(folders / "normal", tmp_path / "normal")
    shutil.copytree(folders / "coins", tmp_path / "coins")
    for number, path in enumerate(sorted((tmp_path / "normal").iterdir())):
        shutil.copy(path, tmp_path / "coins" / f"renamed-{number}.png")
    images = ("--normal", tmp_path / "normal", "--other", tmp_path / "coins")
    command = ("bench", "--suite", "folder", *images, *SMALL, *FEW, "--weights", weights, *LOGIT)
    assert_error(run(*command, "-o", tmp_path / "out"), "30 images", "renamed-")
    assert not (tmp_path / "out/scores").exists()


@pytest.mark.parametrize(("suite", "option"), [("natural", "--data"), ("imagenet", "--data"), ("folder", "--normal")])
def test_a_suite_that_needs_a_folder_names_the_option(run: Run, tmp_path: Path, suite: str, option: str) -> None:
    assert_error(run("bench", "--suite", suite, "-o", tmp_path / "out", *LOGIT), option)
