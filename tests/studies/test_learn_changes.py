"""The network that reasons ask is taught by two commands."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import learn_changes
from discopatch.explain.learnt import LearntChanges
from discopatch.explain.reasons import FORMS
from discopatch.heads import PROBES
from tests.samples import one_camera, save_images


def test_photos_are_described_and_a_network_is_taught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learn_changes, "FORMS_EACH", len(FORMS))
    photos = np.stack([each.pixels for each in one_camera(12, size=256)])
    found = learn_changes.describe(photos, 0)
    assert set(found.change.tolist()) == set(range(1 + len(PROBES)))
    colours = [1 + list(PROBES).index(name) for name in learn_changes.COLOURS]
    assert not set(found.photo[np.isin(found.change, colours)].tolist()) & {0, 5, 10}
    values, change, photo, region = found
    np.savez(tmp_path / "changes.npz", values=values, change=change, photo=photo, region=region)
    learn_changes.teach(tmp_path / "changes.npz", tmp_path / "taught.safetensors", epochs=20, seed=0)
    assert "photos: " in capsys.readouterr().out
    taught = LearntChanges.from_tensors(load_file(tmp_path / "taught.safetensors"))
    assert np.isfinite(taught.log_odds(found.values.astype(np.float64))).all()


@pytest.mark.slow
def test_photos_of_a_folder_are_described(tmp_path: Path) -> None:
    save_images(tmp_path / "photos", one_camera(3, size=256))
    learn_changes.measure([tmp_path / "photos"], tmp_path / "changes.npz")
    with np.load(tmp_path / "changes.npz") as found:
        assert set(found["photo"].tolist()) == {0, 1, 2}
