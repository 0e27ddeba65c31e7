"""The alerts fire for their causes and for nothing else, as Prometheus evaluates them."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.dockerfile import DEPLOY

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
LABEL = 'detector="camera-3"'
HEALTHY = {
    'up{job="discopatch"}': "1x130",
    "discopatch_ready": "1x130",
    f"discopatch_monitor_alarm{{{LABEL}}}": "0x130",
    f"discopatch_monitor_few_count{{{LABEL}}}": "0x130",
    "discopatch_history_failing": "0x130",
    f"discopatch_history_lost_images_total{{{LABEL}}}": "0x130",
    f"discopatch_images_total{{{LABEL}}}": "0+60x130",
    f'discopatch_refused_images_total{{{LABEL}, reason="not_an_image"}}': "0+1x130",
    'discopatch_requests_total{status="200"}': "0+60x130",
    'discopatch_requests_total{status="429"}': "0x130",
    'discopatch_requests_total{status="500"}': "0x130",
    'discopatch_requests_total{status="503"}': "0x130",
}
CAUSES = {  # another course of one series, from healthy at first
    "StreamChanged": (f"discopatch_monitor_alarm{{{LABEL}}}", "0x60 1x70"),
    "FewImagesCount": (f"discopatch_monitor_few_count{{{LABEL}}}", "0x60 1x70"),
    "ServiceDown": ("discopatch_ready", "1x60 0x70"),
    "ImagesTurnedAway": ('discopatch_requests_total{status="503"}', "0x60 0+1x70"),
    "ClientLimited": ('discopatch_requests_total{status="429"}', "0x60 0+1x70"),
    "ServiceErrors": ('discopatch_requests_total{status="500"}', "0x60 0+1x70"),
    "HistoryFailing": ("discopatch_history_failing", "0x60 1x70"),
    "HistoryLost": (f"discopatch_history_lost_images_total{{{LABEL}}}", "0x60 0+1x70"),
    "ImagesRefused": (f'discopatch_refused_images_total{{{LABEL}, reason="not_an_image"}}', "0x60 0+10x70"),
    "NoImages": (f"discopatch_images_total{{{LABEL}}}", "0+60x30 1800x100"),
}


def rules() -> dict[str, Any]:
    found = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule for rule in found}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_each_alert_fires_for_its_cause_alone(tmp_path: Path) -> None:
    assert CAUSES.keys() == rules().keys()
    tests = []
    for cause, (changed, values) in {"": ("", ""), **CAUSES}.items():
        series = {**HEALTHY, changed: values} if cause else dict(HEALTHY)
        if cause == "NoImages":
            series[CAUSES["ImagesRefused"][0]] = "0x130"
        checks = []
        for name, rule in rules().items():
            labels = {**rule["labels"], **({"detector": "camera-3"} if "detector" in CAUSES[name][0] else {})}
            texts = {
                key: text.replace("{{ $labels.detector }}", "camera-3") for key, text in rule["annotations"].items()
            }
            fired = [{"exp_labels": labels, "exp_annotations": texts}] if name == cause else []
            checks.append({"eval_time": "129m", "alertname": name, "exp_alerts": fired})
        inputs = [{"series": name, "values": course} for name, course in series.items()]
        tests.append({"name": cause or "healthy", "interval": "1m", "input_series": inputs, "alert_rule_test": checks})
    written = tmp_path / "alerts.test.yml"
    written.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", written], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
