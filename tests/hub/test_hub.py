"""Detectors on the hub and in folders of its layout: by a fake of the hub's client, so that nothing is downloaded."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import yaml
from huggingface_hub import errors

import discopatch
from discopatch import Detector, HubError, ParameterError, Runtime
from discopatch.hub import HubAddress, locate, push, write_card
from discopatch.hub import download as downloads
from discopatch.utils import file_digest
from tests.cli.conftest import Run, assert_error, run  # noqa: F401 - a fixture
from tests.export.samples import camera_pixels, tiny_detector
from tests.samples import one_camera, save_images

COMMIT = "a" * 40


class FakeHub:
    """Repositories that are folders, and the hub's cache; it answers as `huggingface_hub` does."""

    def __init__(self, root: Path) -> None:
        self.remote, self.cache, self.online = root / "remote", root / "cache", True
        self.sizes: dict[str, int | None] = {}
        self.downloaded: list[str] = []
        self.private: bool | None = None

    def model_info(self, repo_id: str, *, revision: str | None, timeout: float, files_metadata: bool) -> object:
        if not self.online:
            raise errors.OfflineModeIsEnabled("offline, by http://user:secret@proxy")
        folder = self.remote / repo_id
        if not folder.is_dir():
            raise refusal(errors.RepositoryNotFoundError, 404)
        if revision not in (None, "main", "v1", COMMIT):
            raise refusal(errors.RevisionNotFoundError, 404)
        names = [each.relative_to(folder).as_posix() for each in sorted(folder.rglob("*")) if each.is_file()]
        sizes = {name: (folder / name).stat().st_size for name in names} | self.sizes
        siblings = [SimpleNamespace(rfilename=name, size=sizes[name]) for name in names]
        return SimpleNamespace(sha=COMMIT, siblings=siblings)

    def hf_hub_download(
        self, repo_id: str, filename: str, *, revision: str, local_files_only: bool, **_: object
    ) -> str:
        storage = self.cache / f"models--{repo_id.replace('/', '--')}"
        place = storage / "snapshots" / COMMIT / filename
        if not place.is_file():
            if local_files_only or not self.online:
                raise errors.LocalEntryNotFoundError("not in the cache")
            blob = storage / "blobs" / filename.replace("/", "-")
            for folder in (blob.parent, place.parent):
                folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.remote / repo_id / filename, blob)
            place.symlink_to(blob)
            self.downloaded.append(filename)
        return str(place)

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        self.private = private
        (self.remote / repo_id).mkdir(parents=True, exist_ok=exist_ok)

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, path_in_repo: str | None, revision: str | None, commit_message: str
    ) -> object:
        shutil.copytree(folder_path, self.remote / repo_id / (path_in_repo or ""), dirs_exist_ok=True)
        return SimpleNamespace(oid=COMMIT)


def refusal(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    """An error of the hub, whose constructor differs between versions."""
    error = kind.__new__(kind)
    error.response = SimpleNamespace(status_code=status, headers={})  # type: ignore[assignment]
    return error


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda **_: fake)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.hf_hub_download)
    return fake


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "onnx"
    tiny_detector().export(folder)
    return folder


def scores(detector: Detector | Runtime) -> list[float]:
    found: list[float] = detector.score(list(camera_pixels(3)), workers=1).tolist()
    return found


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("hf://owner/name", HubAddress("owner", "name")),
        ("hf:/owner/name", HubAddress("owner", "name")),
        ("hf://owner/name@v1.0/", HubAddress("owner", "name", "v1.0")),
        ("hf://owner/name/cameras/left", HubAddress("owner", "name", None, "cameras/left")),
        ("hf://owner/name@refs%2Fpr%2F1/left", HubAddress("owner", "name", "refs/pr/1", "left")),
    ],
)
def test_an_address_has_a_repository_a_revision_and_a_folder(text: str, address: HubAddress) -> None:
    assert HubAddress.parse(text) == address
    assert HubAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    "text", ["hf://", "hf://owner", "hf://owner/..", "hf://o/n/../x", "hf://o/n@", "hf://o/n@..", "hf://o/n/a//b"]
)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="hf://owner/name"):
        discopatch.load(text)


def test_a_detector_saved_on_the_hub_scores_the_same_once_loaded(hub: FakeHub) -> None:
    tiny_detector().save("hf://owner/camera-3")
    assert hub.private is True, "a new repository is for its owner alone"
    assert sorted(each.name for each in (hub.remote / "owner/camera-3").iterdir()) == [
        "README.md",
        "detector.safetensors",
    ]
    loaded = discopatch.load("hf://owner/camera-3")
    assert isinstance(loaded, Detector)
    assert scores(loaded) == scores(tiny_detector())
    assert hub.downloaded == ["detector.safetensors"]


def test_what_was_taken_is_told_with_its_commit(hub: FakeHub) -> None:
    assert push(tiny_detector(), "hf://owner/camera-3") == f"hf://owner/camera-3@{COMMIT}"
    assert locate("hf://owner/camera-3@v1").address == f"hf://owner/camera-3@{COMMIT}"


def test_an_export_lies_in_a_folder_of_a_repository(hub: FakeHub, export: Path) -> None:
    push(export, "hf://owner/camera-3/onnx")
    loaded = discopatch.load("hf://owner/camera-3/onnx")
    assert isinstance(loaded, Runtime)
    assert np.allclose(scores(loaded), scores(tiny_detector()), atol=1e-3)
    with pytest.raises(HubError, match="folders: onnx"):
        discopatch.load("hf://owner/camera-3")


def test_without_the_hub_an_earlier_download_is_taken(hub: FakeHub) -> None:
    push(tiny_detector(), "hf://owner/camera-3")
    hub.online = False
    with pytest.raises(HubError, match="HF_HUB_OFFLINE") as refused:
        discopatch.load("hf://owner/camera-3")
    assert "secret" not in str(refused.value)
    hub.online = True
    discopatch.load("hf://owner/camera-3")
    hub.online = False
    assert locate("hf://owner/camera-3").address == f"hf://owner/camera-3@{COMMIT}"
    assert scores(discopatch.load("hf://owner/camera-3")) == scores(tiny_detector())


def test_a_repository_without_a_detector_is_refused_and_nothing_is_downloaded(hub: FakeHub) -> None:
    folder = hub.remote / "owner/other"
    folder.mkdir(parents=True)
    for name in ("pytorch_model.bin", "model.safetensors", "detector.pkl", "detector.pt2", "detector.json"):
        (folder / name).write_bytes(b"anything")
    with pytest.raises(HubError, match=r"detector\.safetensors"):
        discopatch.load("hf://owner/other")
    assert hub.downloaded == []


@pytest.mark.parametrize("size", [downloads.MAX_DETECTOR_BYTES + 1, None])
def test_a_file_that_is_too_large_is_refused_and_nothing_is_downloaded(hub: FakeHub, size: int | None) -> None:
    push(tiny_detector(), "hf://owner/camera-3")
    hub.sizes["detector.safetensors"] = size
    with pytest.raises(HubError, match="nothing was downloaded"):
        discopatch.load("hf://owner/camera-3")
    assert hub.downloaded == []


def test_a_file_of_another_size_than_was_told_is_refused(hub: FakeHub) -> None:
    push(tiny_detector(), "hf://owner/camera-3")
    hub.sizes["detector.safetensors"] = 7
    with pytest.raises(HubError, match="size"):
        discopatch.load("hf://owner/camera-3")


def test_the_limit_is_that_of_detector_files() -> None:
    from discopatch.model.weights import MAX_BYTES

    assert MAX_BYTES["detector"] == downloads.MAX_DETECTOR_BYTES


@pytest.mark.parametrize("address", ["hf://owner/nothing", "hf://owner/camera-3@v9"])
def test_what_is_not_there_is_an_error_with_the_remedy(hub: FakeHub, address: str) -> None:
    push(tiny_detector(), "hf://owner/camera-3")
    with pytest.raises(HubError, match=r"log in|a branch, a tag or a commit"):
        discopatch.load(address)


def test_a_folder_of_the_layout_is_loaded_by_its_address_and_by_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "camera-3"
    tiny_detector().save(f"hub://{folder}")
    for place in (f"hub://{folder}", Path(f"hub://{folder}"), folder, str(folder)):
        assert scores(discopatch.load(place)) == scores(tiny_detector())


def test_a_link_out_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    tiny_detector().save(tmp_path / "elsewhere")
    folder = tmp_path / "camera-3"
    folder.mkdir()
    (folder / "detector.safetensors").symlink_to(tmp_path / "elsewhere")
    for place in (f"hub://{folder}", folder):
        with pytest.raises(HubError, match="link"):
            discopatch.load(place)


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_a_detector_is_refused(tmp_path: Path, there: bool) -> None:
    folder = tmp_path if there else tmp_path / "nothing"
    with pytest.raises(HubError, match=str(folder)):
        discopatch.load(f"hub://{folder}")


def test_the_card_has_the_figures_of_the_detector(tmp_path: Path) -> None:
    detector, folder = tiny_detector(), tmp_path / "camera-3"
    push(detector, f"hub://{folder}", licence='cc-by-4.0"\nevil: 1')
    card = (folder / "README.md").read_text(encoding="utf-8")
    _, front, body = card.split("---\n", 2)
    parsed = yaml.safe_load(front)
    assert parsed.keys() == {"library_name", "license", "tags"}
    assert parsed["library_name"] == "discopatch"
    assert parsed["license"].startswith('cc-by-4.0"')
    assert "out-of-distribution-detection" in parsed["tags"]
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", body, re.M))
    guarantee, settings = detector.guarantee_, detector.settings()
    assert int(rows["images"].replace(",", "")) == guarantee.n_fit
    assert int(rows["calibration size"]) == guarantee.n_calibration == len(detector.calibration_scores_)
    assert float(rows["false-alarm rate"]) == detector.false_alarm_rate_
    assert rows["head"] == f"`{detector.head}`"
    assert rows["weights"] == f"`custom`, digest `{settings['weights_digest']}`"
    assert rows["SHA-256"] == f"`{file_digest(folder / 'detector.safetensors')}`"
    assert guarantee.text in body
    assert str(tmp_path) not in card


def test_a_card_without_a_licence_says_that_it_is_unknown() -> None:
    card = write_card(tiny_detector(), "hf://owner/camera-3", sha256="0" * 64)
    assert yaml.safe_load(card.split("---\n")[1])["license"] == "unknown"
    assert 'discopatch.load("hf://owner/camera-3")' in card


def test_names_of_refused_images_are_not_published(tmp_path: Path) -> None:
    images = [*(each.pixels for each in one_camera(40)), tmp_path / "secret-name.png"]
    (tmp_path / "secret-name.png").write_bytes(b"nothing")
    paths = save_images(tmp_path / "normal", one_camera(40))
    detector = Detector(tiny_detector().weights_, head="statistics", false_alarm_rate=0.1, device="cpu")
    detector.fit([*paths, images[-1]], workers=1)
    assert "secret-name" in detector.refusals_.summary()
    push(detector, f"hub://{tmp_path}/public")
    assert b"secret-name" not in (tmp_path / "public/detector.safetensors").read_bytes()
    loaded = Detector.load(tmp_path / "public")
    assert loaded.refusals_.count == 1
    assert scores(loaded) == scores(detector)


def test_what_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HubError, match="hf://owner/name"):
        push(tiny_detector(), tmp_path / "camera-3")


def test_commands_take_an_address_and_tell_the_commit(hub: FakeHub, run: Run, tmp_path: Path) -> None:  # noqa: F811
    push(tiny_detector(), "hf://owner/camera-3")
    images = save_images(tmp_path / "new", one_camera(3, seed=1))
    scored = run("score", tmp_path / "new", "--detector", "hf://owner/camera-3", "--json")
    assert scored.status == 0, scored.err
    assert f"hf://owner/camera-3@{COMMIT}" in scored.err
    assert len(json.loads(scored.out)) == 3
    explained = run("explain", images[0], "--detector", "hf://owner/camera-3", "-o", tmp_path / "heat.png")
    assert explained.status == 0, explained.err
    monitored = run("monitor", tmp_path / "new", "--detector", "hf://owner/camera-3")
    assert monitored.status in (0, 3), monitored.err
    watched = ("watch", tmp_path / "new", "--once", "--database", tmp_path / "w.sqlite", "--detector")
    finished = run(*watched, "hf://owner/camera-3")
    assert finished.status == 0, finished.err
    assert "with camera-3" in finished.out
    assert_error(run("score", tmp_path / "new", "--detector", "hf://owner/nothing"), "hf://owner/nothing")


def test_a_service_names_a_detector_after_its_repository(hub: FakeHub) -> None:
    from discopatch.serve.settings import named_paths

    push(tiny_detector(), "hf://owner/camera-3")
    found = named_paths(["hf://owner/camera-3", "left=hf://owner/camera-3"], locate)
    assert list(found) == ["camera-3", "left"]
    assert all(path.name == "detector.safetensors" for path in found.values())
