"""`discopatch bench`, from the layout of the images to the last table."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from discopatch.images.samples import crops, sample_photos
from tests.benchmark.studies.report_samples import make_studies_report
from tests.benchmark.suites.tree import make_imagenet
from tests.cli.conftest import Run
from tests.scoring.samples import save_pictures, tiny_weights

SMALL = ("--fit-images", 30, "--test-images", 8, "--workers", 1, "--device", "cpu", "--no-figures")
FEW = ("--corruption", "gaussian_noise", "--corruption", "contrast", "--severity", 5)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = [("gaussian_noise", 5), ("contrast", 5)]
    return make_imagenet(tmp_path_factory.mktemp("openood") / "data", cells=cells)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    tiny_weights().save(path)
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Anybody's: normal images and two folders of others."""
    root = tmp_path_factory.mktemp("anybody")
    save_pictures(root / "normal", crops(sample_photos(["temple"]), 50, size=80, seed=0))
    save_pictures(root / "coins", crops(sample_photos(["coins"]), 9, size=80, seed=1))
    save_pictures(root / "cats", crops(sample_photos(["cat"]), 9, size=80, seed=2))
    return root


def results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def test_the_layout_of_openood_is_measured_from_end_to_end(run: Run, tree: Path, weights: Path, tmp_path: Path) -> None:
    words = (
        "bench",
        "--suite",
        "imagenet",
        "--data",
        tree,
        "--weights",
        weights,
        "--methods",
        "discopatch/*",
        *SMALL,
        *FEW,
    )
    status, printed, said = run(*words, "-o", tmp_path)
    assert status == 0, said
    assert "imagenet: mean AUROC x 100 / control" in printed
    report = results(tmp_path)
    assert report["protocols"].keys() == {"matched", "paper"}
    matched = report["protocols"]["matched"]
    groups = {name: each["group"] for name, each in matched["sets"].items()}
    assert groups == {
        "ssb_hard": "near",
        "ninco": "near",
        "inaturalist": "far",
        "textures": "far",
        "openimage_o": "far",
    }
    assert matched["means"].keys() == {"near", "far", "covariate"}
    assert matched["corruptions"].keys() == {"gaussian_noise", "contrast"}
    way = report["data"]["matched"]["control corrupted"]["way"]
    assert [next(iter(step)) for step in way[:3]] == ["resize", "crop", "store"], "ImageNet-C lies in files cut at 224"
    assert {path.name for path in tmp_path.iterdir()} >= {"results.json", "results.csv", "tables.md", "tables.tex"}
    with (tmp_path / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) > 100


def test_corruptions_are_made_here_when_asked_or_when_there_is_no_imagenet_c(
    run: Run, tree: Path, weights: Path, tmp_path: Path
) -> None:
    words = ("bench", "--suite", "imagenet", "--data", tree, "--weights", weights, "--methods", "discopatch/logit")
    status, _, said = run(*words, *SMALL, *FEW, "--protocol", "matched", "--generate", "-o", tmp_path)
    assert status == 0, said
    way = results(tmp_path)["data"]["matched"]["contrast/5"]["way"]
    assert [next(iter(step)) for step in way] == ["resize", "corrupt"]


def test_the_same_command_again_goes_on_and_adds_what_is_new(
    run: Run, folders: Path, weights: Path, tmp_path: Path
) -> None:
    images = ("--normal", folders / "normal", "--other", f"coins={folders / 'coins'}", "--other", folders / "cats")
    words = ("bench", "--suite", "folder", *images, "--weights", weights, *SMALL, *FEW, "-o", tmp_path)
    assert run(*words, "--methods", "discopatch/logit")[0] == 0
    first = results(tmp_path)
    stamp = (tmp_path / "scores/matched/coins.safetensors").stat().st_mtime_ns
    assert run(*words, "--methods", "discopatch/logit")[0] == 0
    assert (tmp_path / "scores/matched/coins.safetensors").stat().st_mtime_ns == stamp, "nothing was scored twice"
    assert run(*words, "--methods", "discopatch/logit,discopatch/statistics")[0] == 0
    second = results(tmp_path)
    name = "discopatch/logit"
    assert second["methods"].keys() == {name, "discopatch/statistics"}
    assert second["protocols"]["paper"]["means"]["far"][name] == first["protocols"]["paper"]["means"]["far"][name]
    assert set(second["protocols"]["matched"]["sets"]) == {"coins", "cats"}


def test_studies_are_added_to_the_tables_of_the_run(run: Run, folders: Path, weights: Path, tmp_path: Path) -> None:
    studied, out = tmp_path / "studied", tmp_path / "out"
    studied.mkdir()
    (studied / "studies.json").write_text(json.dumps(make_studies_report()))
    images = ("--normal", folders / "normal", "--other", folders / "coins", "--weights", weights)
    words = ("bench", "--suite", "folder", *images, "--methods", "discopatch/logit", "--protocol", "matched")
    status, _, said = run(*words, *SMALL, *FEW, "--studies", studied, "-o", out)
    assert status == 0, said
    assert "## Patch counts: released" in (out / "tables.md").read_text()
    assert r"\label{tab:study-batches-1}" in (out / "tables.tex").read_text()
    with (out / "results.csv").open() as file:
        methods = {line["method"] for line in csv.DictReader(file)}
    assert methods >= {"discopatch/logit", "paper-0/patches", "full-0/batch 16"}
    assert (
        json.loads((out / "studies.json").read_text())["plan"]
        == json.loads((studied / "studies.json").read_text())["plan"]
    )


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_to_the_same_figures(folders: Path, weights: Path, tmp_path: Path) -> None:
    words = ["bench", "--suite", "folder", "--normal", folders / "normal", "--other", folders / "coins"]
    words += [
        "--weights",
        weights,
        *SMALL,
        "--severity",
        1,
        "--severity",
        5,
        "--methods",
        "discopatch/*",
        "--protocol",
        "matched",
    ]
    words += ["--corruption", "fog", "--corruption", "contrast", "--corruption", "pixelate"]

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "discopatch", *map(str, words), "-o", str(out)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    assert start(tmp_path / "whole").wait() == 0
    killed = start(tmp_path / "killed")
    scores = tmp_path / "killed/scores"
    while killed.poll() is None and not (scores / "matched/fog-1.safetensors").exists():
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed/results.json").exists()
    assert start(tmp_path / "killed").wait() == 0
    whole, again = (results(tmp_path / name) for name in ("whole", "killed"))
    assert again["protocols"] == whole["protocols"]
    assert again["data"] == whole["data"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("--suite", "cifar"), "unknown suite 'cifar': choose solar, natural, imagenet or folder"),
        (("--methods", "resnet51/energy"), "unknown method 'resnet51/energy'"),
        (("--methods", "discopatch/energy"), "unknown method 'discopatch/energy'"),
        (("--methods", "resnet50/energy", "--backbones", "nowhere"), "discopatch data fetch resnet50"),
        (("--protocol", "fair"), "unknown protocol 'fair': choose from matched, paper"),
        (("--corruption", "rain"), "unknown corruption 'rain'"),
        (("--severity", 6), "unknown severity 6"),
        (("--fit-images", 43), "42 images to fit on, 43 were asked for: add images or ask for fewer"),
        (("--fit-images", 3), "give at least 20"),
        (("--test-images", 30), "50 normal images in .*; 30 to test with and at least 30 to fit on are needed"),
        (("--other-images", 10), "9 images in coins, 10 were asked for"),
        (("--normal", "nowhere"), "no folder or tar shard nowhere"),
        (("--studies", "nowhere"), "no studies in nowhere: give the folder that `python benchmarks/studies.py run"),
        (("--studies", Path(__file__).parent), r"no studies in .*cli/studies\.json: give the folder"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is(
    run: Run, folders: Path, weights: Path, tmp_path: Path, change: tuple[object, ...], complaint: str
) -> None:
    words = ("bench", "--suite", "folder", "--normal", folders / "normal", "--other", folders / "coins", *SMALL, *FEW)
    if "--methods" not in change:
        change = (*change, "--methods", "discopatch/logit")
    status, _, said = run(*words, "--weights", weights, "-o", tmp_path / "out", *change)
    assert status == 1
    assert re.search(complaint, " ".join(said.split())), said
    assert not (tmp_path / "out").exists()


def test_an_image_that_is_both_fitted_and_tested_is_found_by_its_content(
    run: Run, folders: Path, weights: Path, tmp_path: Path
) -> None:
    shutil.copytree(folders / "normal", tmp_path / "normal")
    shutil.copytree(folders / "coins", tmp_path / "coins")
    for number, path in enumerate(sorted((tmp_path / "normal").iterdir())):
        shutil.copy(path, tmp_path / "coins" / f"renamed-{number}.png")
    words = ("bench", "--suite", "folder", "--normal", tmp_path / "normal", "--other", tmp_path / "coins", *SMALL, *FEW)
    status, _, said = run(*words, "--weights", weights, "--methods", "discopatch/logit", "-o", tmp_path / "out")
    assert status == 1
    assert "30 images are both fitted and tested, such as renamed-" in said
    assert "take them out of one of the two folders" in said
    assert not (tmp_path / "out/scores").exists()


def test_an_empty_folder_and_a_wrong_layout_are_errors(run: Run, folders: Path, weights: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for suite, option in (("imagenet", "--data"), ("natural", "--data"), ("solar", "--data")):
        status, _, said = run(
            "bench", "--suite", suite, option, tmp_path / "empty", "--weights", weights, "-o", tmp_path / "out"
        )
        assert status == 1
        assert "empty" in said
    words = ("bench", "--suite", "folder", "--normal", folders / "normal", "--weights", weights, "-o", tmp_path / "out")
    status, _, said = run(*words, *SMALL, "--other", tmp_path / "empty", "--methods", "discopatch/logit")
    assert status == 1
    assert "no images in" in said


def test_a_suite_that_needs_a_folder_says_which_option_gives_it(run: Run, tmp_path: Path) -> None:
    for suite, option in (("natural", "--data ROOT"), ("imagenet", "--data ROOT"), ("folder", "--normal FOLDER")):
        status, _, said = run("bench", "--suite", suite, "-o", tmp_path / "out", "--methods", "discopatch/logit")
        assert status == 1
        assert f"give {option}" in said


def test_figures_without_matplotlib_are_refused_before_the_long_work(
    run: Run, folders: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ("bench", "--suite", "folder", "--normal", folders / "normal", "--weights", weights, "-o", tmp_path / "out")
    status, _, said = run(*words, "--methods", "discopatch/logit")
    assert status == 1
    assert "matplotlib is not installed: pip install 'discopatch[bench]'" in said
    assert not (tmp_path / "out").exists()


def test_a_folder_is_split_by_itself_and_its_copies_are_told(
    run: Run, folders: Path, weights: Path, tmp_path: Path
) -> None:
    shutil.copytree(folders / "normal", tmp_path / "normal")
    one = next((tmp_path / "normal").iterdir())
    shutil.copy(one, tmp_path / "normal" / "copy.png")
    words = ("bench", "--suite", "folder", "--normal", tmp_path / "normal", "--weights", weights, *FEW)
    status, _, said = run(*words, "--methods", "discopatch/logit", "--no-figures", "-o", tmp_path / "out")
    assert status == 0, said
    assert "1 copies of normal images are left out" in said
    assert results(tmp_path / "out")["sizes"] == {"fit": 34, "test": 16}
