"""`discopatch doctor`: a report for issues, whatever is missing or broken."""

import json
from importlib import metadata

import pytest

from discopatch import Detector, doctor
from discopatch.errors import MissingExtraError
from tests.cli.conftest import Run, run  # noqa: F401 - a fixture
from tests.export.samples import run_without_torch


def test_the_report_has_versions_devices_and_extras(run: Run) -> None:  # noqa: F811
    finished = run("doctor", "--no-test", "--json")
    report = json.loads(finished.out)
    assert (finished.status, list(report)) == (0, ["ok", "versions", "devices", "defaults", "extras", "self_test"])
    assert report["versions"]["numpy"] == metadata.version("numpy")
    assert "cpu" in report["devices"]
    assert not {"ruff", "mypy", "pytest", "playwright", "mkdocs-material"} & report["versions"].keys()
    settings = ["device", "threads", "batch-size", "workers", "decoder", "precision"]
    assert list(report["defaults"]) == settings
    assert "serve" in report["extras"]
    assert not {"dev", "docs", "test"} & report["extras"].keys()
    text = run("doctor", "--no-test").out
    for part in ("versions", "devices", "extras", "self-test", metadata.version("numpy")):
        assert part in text
    table = text.partition("defaults\n")[2].splitlines()[: len(settings)]
    assert [tuple(line.split()[:2]) for line in table] == [
        (name, report["defaults"][name].partition(":")[0]) for name in settings
    ]


def test_threads_are_those_of_the_setting_or_the_option(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def threads(*arguments: object) -> str:
        report = json.loads(run(*arguments, "doctor", "--no-test", "--json").out)
        return str(report["defaults"]["threads"])

    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert threads().endswith(": all cores")
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert threads().startswith("3: OMP_NUM_THREADS")
    assert threads("--threads", 2).startswith("2: ")


def test_a_missing_or_old_package_of_an_extra_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = metadata.version

    def version(name: str) -> str:
        if name == "onnxscript":
            raise metadata.PackageNotFoundError(name)
        return "1.0" if name == "onnx" else found(name)

    monkeypatch.setattr(metadata, "version", version)
    export = doctor.extras()["export"]
    assert [text.split(">=")[0] for text in export["missing"]] == ["onnx", "onnxscript"]
    assert export["install"] == "pip install 'discopatch[export]'"
    assert doctor.extras()["sklearn"]["install"] is None


def test_after_a_failed_fit_no_other_step_is_tried(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def fail(*_: object) -> Detector:
        raise RuntimeError("broken")

    monkeypatch.setattr(Detector, "fit", fail)
    finished = run("doctor", "--json")
    (step,) = json.loads(finished.out)["self_test"]
    assert (finished.status, step["status"], step["detail"]) == (1, "failed", "RuntimeError: broken")


@pytest.mark.slow
def test_the_self_test_passes_and_skips_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise MissingExtraError("onnx is not installed")

    monkeypatch.setattr("discopatch.export.exporter.export_detector", missing)
    steps = doctor.self_test()
    assert [(each["step"], each["status"]) for each in steps] == [
        ("fit", "passed"),
        ("score", "passed"),
        ("save", "passed"),
        ("export", "skipped"),
    ], steps


def test_it_works_without_torch() -> None:
    code = "sys.argv = ['discopatch', 'doctor', '--json']\nfrom discopatch.cli import main\nmain()\n"
    report = json.loads(run_without_torch(code))
    assert "not installed" in report["devices"]["torch"]
    assert [each["status"] for each in report["self_test"]] == ["skipped"]
