"""A backbone by its name, or an error that says which there are."""

import subprocess
import sys
from pathlib import Path

import pytest

from discopatch.baselines.backbones import BACKBONES, fetched, load_backbone
from discopatch.baselines.backbones.fetch import PACKAGES


def test_every_name_has_a_package() -> None:
    assert list(BACKBONES) == list(PACKAGES) == ["resnet50", "efficientnet-lite0"]


@pytest.mark.parametrize("name", ["resnet18", "vit=/some/folder", "regnet", "", "resnet50=/some/folder"])
def test_an_unknown_name_lists_those_there_are(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"resnet50, efficientnet-lite0, regnet=FOLDER, .*beitv2=FOLDER"):
        load_backbone(name, folder=tmp_path)


@pytest.mark.parametrize("name", list(BACKBONES))
def test_missing_weights_name_the_command(name: str, tmp_path: Path) -> None:
    assert not fetched(name, tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"`discopatch data fetch {name} --folder .*`"):
        load_backbone(name, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_importing_backbones_imports_nothing_optional() -> None:
    code = "import sys, discopatch.baselines.backbones; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
