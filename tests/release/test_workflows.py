"""The workflows do no more than they must: least rights, exact actions, nothing of strangers in a shell."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.dockerfile import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+){2}")
STRANGERS = re.compile(r"\$\{\{[^}]*(github\.event\.|github\.head_ref|github\.ref_name|inputs\.|secrets\.)")

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def load(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found


def steps(workflow: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


@each_workflow
def test_rights_are_given_to_single_jobs_alone(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert job["permissions"], name
        writes = {right for right, level in job["permissions"].items() if level == "write"}
        assert writes <= {"id-token", "pages"}, name
        assert not writes or "environment" in job, "whoever may write waits for the rules of an environment"
        assert job["timeout-minutes"] <= 180


@each_workflow
def test_every_action_is_named_by_its_commit_and_checkouts_keep_no_credentials(path: Path) -> None:
    used = [line.strip().removeprefix("- ") for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    for line in used:
        assert PINNED.fullmatch(line), line
    for step in steps(load(path)):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@each_workflow
def test_nothing_of_strangers_reaches_a_shell_or_a_secret(path: Path) -> None:
    workflow = load(path)
    triggers = workflow[True]  # `on`, which YAML takes for a boolean
    assert not {"pull_request_target", "workflow_run", "issue_comment"} & set(triggers)
    assert "secrets." not in path.read_text()
    for step in steps(workflow):
        assert not STRANGERS.search(step.get("run", "")), step


def test_a_release_publishes_what_was_built_and_checked_by_trusted_publishing() -> None:
    workflow = load(GITHUB / "workflows" / "release.yml")
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert list(workflow[True]) == ["push"]
    assert list(workflow[True]["push"]) == ["tags"]
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
    assert not any("run" in step for step in publish["steps"]), "nothing else has the right to publish"
    assert not any("password" in step.get("with", {}) for step in publish["steps"])
    assert any(step.get("run") == "make check-dist" for step in build["steps"])
    assert not any("cache" in step.get("with", {}) for step in build["steps"])


def test_the_checks_are_those_of_make_check_on_every_python_that_is_named() -> None:
    workflow = load(GITHUB / "workflows" / "check.yml")
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert matrix["python"] == classifiers
    commands = [step.get("run", "") for step in steps(workflow)]
    assert any("--resolution lowest-direct" in command for command in commands)
    for command in ("ruff format --check .", "ruff check .", "mypy"):
        assert command in commands
        assert command in (ROOT / "Makefile").read_text()
