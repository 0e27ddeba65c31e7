from pathlib import Path

import pytest

from discopatch.cli.demo import claim


def test_a_demo_takes_the_place_of_an_earlier_one_even_one_cut_short(tmp_path: Path) -> None:
    folder = tmp_path / "demo-run"
    claim(folder)
    (folder / "cache").mkdir()
    claim(folder)
    assert not (folder / "cache").exists()


def test_a_demo_never_deletes_a_training_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="not a demo's"):
        claim(tmp_path)
    assert (tmp_path / "run.json").exists()
