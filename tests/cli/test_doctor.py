"""`discopatch doctor`: what an issue report carries, whatever is missing or broken."""

import json
import shutil
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from discopatch import Detector, doctor
from discopatch.doctor import extras, machine, private, self_test, weights
from discopatch.errors import MissingExtraError
from tests.export.samples import run_without_torch, tiny_detector

from .conftest import Run

KEYS = ["schema", "ok", "problems", "versions", "torch", "devices", "extras", "weights", "cache", "self_test"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A self-test whose fit is over at once, and whose detector flags what it should."""
    fitted = tiny_detector()
    monkeypatch.setattr(self_test, "FEWEST_FOUND", 0)
    monkeypatch.setattr(self_test, "MOST_FLAGGED", self_test.INCOMING)
    monkeypatch.setattr(Detector, "fit", lambda *_: fitted)


def test_the_table_of_extras_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert extras.GIVES.keys() == project["optional-dependencies"].keys()
    assert all(extras.GIVES.values())


@pytest.mark.slow
def test_the_json_has_stable_keys_and_all_steps_pass(run: Run, quick: None) -> None:
    finished = run("doctor", "--json")
    report = json.loads(finished.out)
    assert finished.status == 0, report["problems"]
    assert list(report) == KEYS
    assert (report["schema"], report["ok"]) == (1, True)
    steps = report["self_test"]["steps"]
    assert [each["name"] for each in steps] == ["fit", "score", "corrupted", "save", "export"]
    assert {each["status"] for each in steps} == {"passed"}
    assert report["versions"]["packages"]["torch"] == report["torch"]["version"]


def test_the_text_has_every_part(run: Run) -> None:
    finished = run("doctor", "--no-test")
    assert finished.status == 0
    for title in ("versions", "devices", "extras", "released weights", "cache", "self-test"):
        assert any(line.strip() == title for line in finished.out.splitlines())
    assert self_test.NOT_ASKED in finished.out
    assert finished.out.splitlines()[-1] == "all is well"


def test_a_missing_extra_says_how_to_install_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = metadata.version

    def version(name: str) -> str:
        if name == "onnxscript":
            raise metadata.PackageNotFoundError(name)
        return "1.0" if name == "onnx" else found(name)

    monkeypatch.setattr(metadata, "version", version)
    each = json.loads(run("doctor", "--no-test", "--json").out)["extras"]["export"]
    assert each["installed"] is False
    assert [text.split(">=")[0] for text in each["missing"]] == ["onnx", "onnxscript"]
    assert "there is 1.0" in each["missing"][0]
    assert each["install"] == "pip install 'discopatch[export]'"


def test_damaged_and_missing_weights_end_with_status_1(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pretrained"
    shutil.copytree(weights.released_folder(), folder)
    path = folder / "natural-v2.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    (folder / "paper-v1.safetensors").unlink()
    monkeypatch.setattr(weights, "released_folder", lambda: folder)
    finished = run("doctor", "--no-test", "--json")
    report = json.loads(finished.out)
    assert (finished.status, report["ok"]) == (1, False)
    assert {name: each["status"] for name, each in report["weights"].items()} == {
        "natural-small-v1": "ok",
        "natural-v2": "damaged",
        "paper-v1": "missing",
    }
    assert run("doctor", "--no-test").status == 1


@pytest.mark.slow
def test_a_failing_step_ends_with_status_1_and_the_others_are_told(
    run: Run, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "MOST_FLAGGED", -1)
    finished = run("doctor", "--json")
    report = json.loads(finished.out)
    assert (finished.status, report["ok"], report["self_test"]["status"]) == (1, False, "failed")
    statuses = {each["name"]: each["status"] for each in report["self_test"]["steps"]}
    assert statuses["score"] == "failed"
    assert statuses["export"] == "passed"


def test_without_a_fit_nothing_else_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Detector:
        raise RuntimeError("broken")

    monkeypatch.setattr(Detector, "fit", fail)
    steps = self_test.run_self_test()["steps"]
    assert [each["status"] for each in steps] == ["failed", *["skipped"] * 4]


def test_without_onnx_the_export_is_skipped(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def export(*_: object, **__: object) -> None:
        raise MissingExtraError("onnx is not installed: pip install 'discopatch[export]'")

    monkeypatch.setattr(Detector, "export", export)
    found = self_test.run_self_test()
    assert found["status"] == "passed"
    assert (found["steps"][-1]["status"], "[export]" in found["steps"][-1]["detail"]) == ("skipped", True)


@pytest.mark.parametrize("name", list(doctor.PROBES))
def test_a_probe_that_fails_is_a_problem_and_the_others_go_on(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail() -> Any:
        raise OSError("libcudart.so: cannot open shared object file")

    monkeypatch.setitem(doctor.PROBES, name, fail)
    finished = run("doctor", "--no-test", "--json")
    report = json.loads(finished.out)
    assert report[name] is None
    assert any("libcudart.so" in each for each in report["problems"])
    assert finished.status == (name == "weights"), "weights that could not be examined are not well"
    assert run("doctor", "--no-test").status == finished.status


def test_no_path_of_the_user_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(Path.home())
    told = private.without_paths({"a": [f"{home}/x/y", "/data/alice/z.txt: no such file", "see https://a.org/b/c"]})
    assert told == {"a": ["~/x/y", ".../z.txt: no such file", "see https://a.org/b/c"]}
    monkeypatch.setenv("XDG_CACHE_HOME", "/mnt/alice/cache")
    assert private.without_paths(machine.probe_cache()["folder"]) == "$XDG_CACHE_HOME/discopatch"
    assert private.without_paths(r"C:\Users\bob\x.txt") == ".../x.txt"


def test_it_works_without_torch_and_says_so() -> None:
    code = (
        "from discopatch.cli import main\n"
        "for flags in (['--json'], []):\n"
        "    sys.argv = ['discopatch', 'doctor', *flags]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        print('status', end.code)\n"
    )
    printed = run_without_torch(code)
    report, end = json.JSONDecoder().raw_decode(printed)
    assert report["torch"] is None
    assert report["self_test"]["status"] == "skipped"
    assert report["self_test"]["detail"] == machine.NO_TORCH
    assert {each["status"] for each in report["weights"].values()} == {"ok"}
    assert printed[end:].count("status 0") == 2


@pytest.mark.slow
def test_the_self_test_passes() -> None:
    found = self_test.run_self_test()
    assert [each["status"] for each in found["steps"]] == ["passed"] * 5, found
