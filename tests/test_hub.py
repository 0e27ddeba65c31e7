"""Detectors on the hub, with a fake of its client, so that nothing is downloaded."""

import fnmatch
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import yaml
from huggingface_hub import errors

import discopatch
from discopatch import Detector
from discopatch.errors import ParameterError, StoreError
from discopatch.hub import locate, push
from discopatch.utils import file_digest
from tests.cli.conftest import Run, assert_error, run  # noqa: F401 - a fixture
from tests.samples import new_detector, one_camera, save_images

COMMIT = "a" * 40
ADDRESS = "hf://owner/camera-3"
NEW = one_camera(2, size=256, seed=1)


class FakeHub:
    """Repositories in a folder, and the cache of the hub."""

    def __init__(self, root: Path) -> None:
        self.remote, self.cache, self.online = root / "remote", root / "cache", True
        self.private: bool | None = None

    def snapshot_download(self, repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        snapshot = self.cache / repo_id / "snapshots" / COMMIT
        if not self.online and not snapshot.is_dir():
            raise errors.LocalEntryNotFoundError("not in the cache, by http://user:secret@proxy")
        if self.online and (not (self.remote / repo_id).is_dir() or revision not in (None, "main", COMMIT)):
            raise OSError("404")
        for path in (self.remote / repo_id).rglob("*") if self.online else ():
            name = path.relative_to(self.remote / repo_id).as_posix()
            if any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns):
                (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, snapshot / name)
        snapshot.mkdir(parents=True, exist_ok=True)
        return str(snapshot)

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        self.private = private
        (self.remote / repo_id).mkdir(parents=True, exist_ok=exist_ok)

    def upload_folder(self, *, repo_id: str, folder_path: Path, path_in_repo: str | None, **_: object) -> object:
        shutil.copytree(folder_path, self.remote / repo_id / (path_in_repo or ""), dirs_exist_ok=True)
        return SimpleNamespace(oid=COMMIT)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda **_: fake)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    return fake


def scores(place: Path | str) -> list[float]:
    found: list[float] = discopatch.load(place, device="cpu").score(NEW, workers=1).tolist()
    return found


@pytest.mark.parametrize(
    "text", ["hf://", "hf://owner", "hf://owner/..", "hf://o/n/../x", "hf://o/n@", "hf://o/n@..", "hf://o/n/a//b"]
)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="hf://owner/name"):
        discopatch.load(text)


def test_an_address_of_another_store_is_refused_with_a_remedy_and_without_secrets() -> None:
    with pytest.raises(ParameterError, match="download it") as raised:
        discopatch.load("s3://key:secret@bucket/camera.safetensors")
    assert "secret" not in str(raised.value)


def test_an_uploaded_detector_has_the_same_scores_also_offline(hub: FakeHub, detector: Detector) -> None:
    assert push(detector, ADDRESS) == f"{ADDRESS}@{COMMIT}"
    assert hub.private is True
    assert {each.name for each in (hub.remote / "owner/camera-3").iterdir()} == {"README.md", "detector.safetensors"}
    expected = detector.score(NEW, workers=1).tolist()
    for address in (ADDRESS, f"{ADDRESS}@{COMMIT}", Path(ADDRESS)):
        assert scores(address) == expected
        assert locate(address)[1:] == ("camera-3", f"{ADDRESS}@{COMMIT}")
    hub.online = False
    assert scores(ADDRESS) == expected
    with pytest.raises(StoreError) as refused:
        discopatch.load("hf://owner/other")
    assert "secret" not in str(refused.value)


def test_an_export_is_stored_in_a_folder_of_a_repository(hub: FakeHub, export_folder: Path) -> None:
    assert push(export_folder, f"{ADDRESS}/left/onnx") == f"{ADDRESS}@{COMMIT}/left/onnx"
    assert scores(f"{ADDRESS}/left/onnx") == scores(export_folder)
    assert locate(f"{ADDRESS}/left/onnx").name == "onnx"
    with pytest.raises(StoreError):
        discopatch.load(ADDRESS)


def test_only_files_of_detectors_are_downloaded(hub: FakeHub) -> None:
    folder = hub.remote / "owner/other"
    folder.mkdir(parents=True)
    for name in ("pytorch_model.bin", "model.safetensors", "detector.pkl", "code.py"):
        (folder / name).write_bytes(b"anything")
    with pytest.raises(StoreError, match=r"detector\.safetensors"):
        discopatch.load("hf://owner/other")
    assert not [path for path in hub.cache.rglob("*") if path.is_file()]


def test_a_downloaded_folder_is_loaded_by_its_path(tmp_path: Path, detector: Detector) -> None:
    detector.save(tmp_path / "camera" / "detector.safetensors")
    assert scores(tmp_path / "camera") == scores(tmp_path / "camera" / "detector.safetensors")


def test_the_card_has_the_figures_of_the_detector(hub: FakeHub, detector: Detector) -> None:
    folder = hub.remote / "owner/camera-3"
    push(detector, ADDRESS, licence="cc-by-4.0", title="Left camera")
    card = (folder / "README.md").read_text(encoding="utf-8")
    _, front, body = card.split("---\n", 2)
    parsed = yaml.safe_load(front)
    assert (parsed["library_name"], parsed["license"]) == ("discopatch", "cc-by-4.0")
    guarantee = detector.guarantee_
    for text in (
        "# Left camera",
        guarantee.text,
        f"| calibration images | {guarantee.n_calibration} |",
        detector.weights_.digest,
        file_digest(folder / "detector.safetensors"),
        f'discopatch.load("{ADDRESS}")',
        *(f"\n| {rate.kind} | {rate.size} | {rate.text} |\n" for rate in detector.detection_rates_),
    ):
        assert text in body


def test_names_of_refused_images_are_not_published(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "secret-name.png").write_bytes(b"nothing")
    images = [*(each.pixels for each in one_camera(40)), tmp_path / "secret-name.png"]
    fitted = new_detector(head="statistics").fit(images, workers=1)
    assert "secret-name" in fitted.refusals_.summary()
    fitted.save(tmp_path / "file")
    for given in (fitted, tmp_path / "file"):
        push(given, ADDRESS)
        assert b"secret-name" not in (hub.remote / "owner/camera-3/detector.safetensors").read_bytes()
        loaded = Detector.load(locate(ADDRESS).path)
        assert loaded.refusals_.count == 1


def test_commands_take_an_address_and_print_the_commit(
    hub: FakeHub,
    detector: Detector,
    run: Run,  # noqa: F811
    tmp_path: Path,
) -> None:
    push(detector, ADDRESS)
    save_images(tmp_path / "new", NEW)
    scored = run("score", tmp_path / "new", "--detector", ADDRESS)
    assert scored.status == 0, scored.err
    assert f"{ADDRESS}@{COMMIT}" in scored.err
    assert_error(run("score", tmp_path / "new", "--detector", "hf://owner/nothing"), "hf://owner/nothing")
