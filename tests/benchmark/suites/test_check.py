"""What is there, what is missing, where it is had: said for every set, without downloading anything."""

import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from discopatch.benchmark.suites.check import COMPLETE, Finding, check_data, compared
from discopatch.benchmark.suites.openood import LISTS, SETS
from discopatch.cli.datacheck import check
from discopatch.images.corrupt import SEVERITIES

from ..samples import make_folders
from .tree import make_imagenet

LARGE = "images_largescale"


def found(root: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_data(root)}


def run(root: Path) -> Result:
    app = typer.Typer()
    app.command()(check)
    return CliRunner().invoke(app, [str(root)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_imagenet(tmp_path / "data", fit=30, cells=[("fog", 1), ("fog", 2), ("spatter", 5)])


def test_sets_are_compared_with_what_was_published(root: Path) -> None:
    findings = found(root)
    expected = {each.name: findings[each.name].expected for each in SETS}
    assert expected == {
        "train": 1_281_167,
        "validation": 45_000,
        "ssb_hard": 49_000,
        "ninco": 5_879,
        "inaturalist": 10_000,
        "textures": 5_160,
        "openimage_o": 15_869,
    }
    assert (findings["ninco"].found, findings["ninco"].status) == (8, "5,871 fewer than published")
    assert all(finding.usable for finding in findings.values())
    assert (compared(5, 5), compared(7, 5)) == (COMPLETE, "2 more than published")


def test_without_lists_whole_folders_are_counted(root: Path) -> None:
    assert (found(root)[LISTS].found, found(root)[LISTS].status) == (7, COMPLETE)
    shutil.rmtree(root / "benchmark_imglist")
    findings = found(root)
    assert (findings["validation"].found, findings["validation"].expected) == (13, 50_000)
    assert (findings["openimage_o"].expected, findings["textures"].expected) == (17_632, 5_640)
    assert findings[LISTS].status == "without a list all images of a folder are used"


def test_a_missing_set_is_said_with_where_it_is_had(root: Path) -> None:
    shutil.rmtree(root / LARGE / "imagenet_1k/train")
    shutil.rmtree(root / "images_classic")
    findings = found(root)
    assert not findings["train"].usable
    assert "missing: no images_largescale/imagenet_1k/train" in findings["train"].status
    assert "https://image-net.org" in findings["train"].where
    assert findings["textures"].where == "OpenOOD's download.py: texture"
    assert [finding.name for finding in findings.values() if not finding.usable] == ["train", "textures"]


def test_files_that_a_list_names_and_that_are_missing_are_counted(root: Path) -> None:
    images = sorted((root / LARGE / "openimage_o/images").iterdir())
    for path in images[2:5]:
        path.unlink()
    finding = found(root)["openimage_o"]
    assert (finding.found, finding.usable) == (5, False)
    assert finding.status == f"3 that the list names are missing, the first openimage_o/images/{images[2].name}"


def test_a_bad_list_and_an_empty_folder_are_findings_not_crashes(root: Path) -> None:
    (root / LISTS / "test_ninco.txt").write_text("no label\n")
    (root / LISTS / "test_ssb_hard.txt").unlink()
    shutil.rmtree(root / LARGE / "ssb_hard")
    (root / LARGE / "ssb_hard").mkdir()
    findings = found(root)
    assert "not 'path label'" in findings["ninco"].status
    assert "no images in" in findings["ssb_hard"].status
    assert not findings["ninco"].usable
    assert not findings["ssb_hard"].usable


def test_cells_of_imagenet_c_that_are_left_out_are_said_and_the_rest_is_usable(root: Path) -> None:
    findings = found(root)
    covariate = [finding for finding in findings.values() if finding.role == "covariate"]
    assert len(covariate) == 19
    assert (findings["fog"].found, findings["fog"].status) == (26, "severity 3, 4, 5 left out")
    assert findings["snow"].status == "left out"
    assert findings["spatter"].where == "https://zenodo.org/records/2235448: extra.tar"
    assert all(finding.usable for finding in covariate)


def test_a_sample_of_imagenet_c_is_called_so(tmp_path: Path) -> None:
    make_imagenet(tmp_path, fit=30, cells=[("fog", severity) for severity in SEVERITIES], class_folders=False)
    finding = found(tmp_path)["fog"]
    assert (finding.found, finding.usable) == (65, True)
    assert finding.status == "249,935 fewer than published; OpenOOD hands out a sample"


def test_without_imagenet_c_it_is_said_that_corruptions_are_made(tmp_path: Path) -> None:
    make_imagenet(tmp_path, fit=30)
    (tmp_path / LARGE / "imagenet_c/fog/1").mkdir(parents=True)
    finding = found(tmp_path)["imagenet_c"]
    assert (finding.usable, finding.expected) == (True, 19 * 5 * 50_000)
    assert "the test images are corrupted during the run" in finding.status


def test_shards_of_photos_are_recognised(tmp_path: Path) -> None:
    make_folders(tmp_path)
    findings = found(tmp_path)
    assert (findings["train"].found, findings["test"].found, findings["steel"].found) == (160, 8, 5)
    assert all(finding.usable for finding in findings.values())
    (tmp_path / "ood/steel.tar").unlink()
    (tmp_path / "natural/test.tar").write_bytes(b"no archive" * 100)
    for path in (tmp_path / "natural").glob("train-*.tar"):
        path.unlink()
    findings = found(tmp_path)
    assert [name for name, finding in findings.items() if not finding.usable] == ["train", "test", "steel"]
    assert findings["steel"].status == "missing: no ood/steel.tar"
    assert "copy it again" in findings["test"].status


def test_solar_cells_are_recognised(tmp_path: Path) -> None:
    folder = make_folders(tmp_path) / "solar"
    findings = found(folder)
    assert (findings["normal"].found, findings["normal"].expected) == (160, 1508)
    assert (findings["defective"].found, findings["defective"].expected) == (10, 715)
    (folder / "images/cell0004.png").unlink()
    assert "the first images/cell0004.png" in found(folder)["defective"].status
    assert not found(folder)["defective"].usable


def test_a_folder_of_no_known_layout_is_an_error_that_names_the_layouts(tmp_path: Path) -> None:
    (tmp_path / "holiday").mkdir()
    with pytest.raises(ValueError, match=r"which holds holiday/\. .*images_largescale.*natural/train.*labels.csv"):
        check_data(tmp_path)
    with pytest.raises(ValueError, match="which is not there"):
        check_data(tmp_path / "absent")


def test_the_command_prints_every_set_and_that_nothing_was_downloaded(root: Path) -> None:
    result = run(root)
    assert result.exit_code == 0
    for part in (
        "ssb_hard",
        "near",
        "49,000",
        "48,992 fewer than published",
        "all that a run needs is there",
        "fewer images than published: train, ",
    ):
        assert part in result.output
    assert "nothing was downloaded" in result.output


def test_the_command_fails_when_something_needed_is_missing(root: Path) -> None:
    shutil.rmtree(root / LARGE / "ninco")
    (root / "images_classic/texture").rename(root / "images_classic/[dtd]")
    result = run(root)
    assert result.exit_code == 1
    assert "missing: ninco, textures" in result.output
    assert "nothing was downloaded" in result.output
