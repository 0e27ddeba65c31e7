"""NOTICE names where weights and images come from, every one of them."""

import json
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT

NOTICE = (ROOT / "NOTICE").read_text()
LINES = set(map(str.strip, NOTICE.splitlines()))
CARDS = sorted((ROOT / "src/discopatch/pretrained").glob("*.json"))
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".svg", ".avif")


def is_named(path: Path) -> bool:
    """Whether the file has a line of its own, or its folder has."""
    name = path.relative_to(ROOT).as_posix()
    return name in LINES or f"{name.rpartition('/')[0]}/" in LINES


def test_every_file_of_weights_is_named() -> None:
    weights = sorted((ROOT / "src").rglob("*.safetensors"))
    assert len(weights) >= 3
    assert [path for path in weights if not is_named(path)] == []


def test_every_image_of_the_documentation_is_named() -> None:
    images = [path for path in sorted((ROOT / "docs" / "images").rglob("*")) if path.suffix in PICTURES]
    images += sorted((ROOT / "docs" / "examples").iterdir())
    assert len(images) > 5
    assert [path for path in images if not is_named(path)] == []


def test_what_is_named_is_there() -> None:
    named = [line for line in LINES if line.startswith(("src/discopatch/", "docs/images/", "tests/"))]
    assert [name for name in named if "*" not in name and " " not in name and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_every_source_of_the_training_photos_is_named(card: Path) -> None:
    sources = json.loads(card.read_text())["data"]["sources"]
    assert [name for name in sources if name not in NOTICE] == []
