"""The service as a process: without torch, a graceful end, a reload by signal, its log, its address."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

import discopatch
from discopatch.serve.settings import default_history
from tests.samples import new_detector, one_camera
from tests.serve.samples import MAIN, NAME, SCORE, camera_files, form, named, noise, png, running
from tests.serve.test_queue import wait_until


def test_an_export_is_served_without_torch(tmp_path: Path, export_folder: Path) -> None:
    with running(tmp_path, export_folder, "--no-history", without_torch=True) as service, service.client() as client:
        files = camera_files(3)
        found = client.post(SCORE, files=form(files)).json()
        wanted = discopatch.load(export_folder).predict(named(files)).scores.tolist()
        assert [each["score"] for each in found["predictions"]] == wanted
        assert client.post(f"/v1/detectors/{NAME}/explain", files=form(files[:1])).status_code == 200
        for path in ("/", "/metrics", "/openapi.json", "/v1/detectors", f"/v1/detectors/{NAME}"):
            assert client.get(path).status_code == 200
        assert service.stop() == 0


def test_a_stop_answers_what_was_accepted_and_ends_well(tmp_path: Path, export_folder: Path) -> None:
    files = [("large.png", png(noise(1000)))] * 12
    with running(tmp_path, export_folder, "--drain", "0.5") as service, service.client() as client:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(client.post(SCORE, files=form(files))))
        thread.start()
        with service.client() as other:
            wait_until(lambda: "discopatch_queue_images 0.0" not in other.get("/metrics").text)
            service.process.send_signal(signal.SIGTERM)
            wait_until(lambda: any(line["event"] == "stopping" for line in service.lines()))
            answer = other.get("/v2/health/ready")
            assert answer.status_code == 503
            assert answer.json()["ready"] is False
        assert service.process.wait(timeout=60) == 0
        thread.join()
        assert found[0].status_code == 200
        assert len(found[0].json()["predictions"]) == 12
        assert service.lines()[-1]["event"] == "stopped"


def test_a_second_signal_ends_at_once(tmp_path: Path, export_folder: Path) -> None:
    with running(tmp_path, export_folder, "--no-history", "--drain", "600") as service:
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: any(line["event"] == "stopping" for line in service.lines()))
        assert service.process.poll() is None
        assert service.stop(signal.SIGINT) == 128 + signal.SIGINT


@pytest.mark.slow
def test_a_signal_reloads_and_a_bad_file_keeps_the_old(tmp_path: Path, detector_file: Path) -> None:
    own = Path(shutil.copy(detector_file, tmp_path / NAME))
    files = camera_files(2)
    with running(tmp_path, own, "--no-history", "--device", "cpu") as service, service.client() as client:

        def scores() -> list[float]:
            return [each["score"] for each in client.post(SCORE, files=form(files)).json()["predictions"]]

        def reloads() -> list[dict[str, Any]]:
            return [line for line in service.lines() if line["event"] == "reload"]

        before = scores()
        other = new_detector(head="combined").fit(one_camera(60, seed=8), workers=1)
        other.save(own)
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(reloads()) == 1)
        assert reloads()[0]["changed"] == [NAME]
        after = scores()
        assert after == other.predict(named(files)).scores.tolist() != before
        own.write_bytes(b"nothing")
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(reloads()) >= 2)
        assert reloads()[-1]["level"] == "error"
        assert scores() == after


def test_the_log_has_a_line_a_request_with_its_id(tmp_path: Path, export_folder: Path) -> None:
    with running(tmp_path, export_folder, "--no-history") as service, service.client() as client:
        client.post(SCORE, files=form([*camera_files(2), ("bad", b"x")]), headers={"X-Request-ID": "mine"})
        wait_until(lambda: any(line.get("request_id") == "mine" for line in service.lines()))
        (line,) = [line for line in service.lines() if line.get("request_id") == "mine"]
        assert (line["event"], line["status"], line["images"], line["refused"]) == ("request", 200, 3, 1)
        assert service.lines()[0]["event"] == "listening"


@pytest.mark.slow
def test_errors_at_the_start_are_one_line(tmp_path: Path, export_folder: Path) -> None:
    with running(tmp_path, export_folder, "--no-history") as service:
        port = str(service.port)
        for arguments, part in (
            ([str(export_folder), "--port", port, "--no-history"], "choose another --host or --port"),
            ([str(tmp_path / "nothing"), "--no-history"], "nothing"),
            ([str(export_folder), "--token-file", str(tmp_path / "none")], "tokens"),
            ([str(export_folder), "--history", str(export_folder / "detector.json"), "--port", "0"], "history"),
        ):
            command = [sys.executable, "-c", f"import sys\n{MAIN}", "serve", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
            assert done.returncode == 1
            lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
            assert len(lines) == 1
            assert part in lines[0]


def test_the_history_is_in_the_users_folder_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_history(8080) == tmp_path / "discopatch" / "serve-8080.sqlite"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_history(1).is_absolute()


@pytest.mark.slow
def test_a_log_that_nobody_reads_holds_up_nothing(tmp_path: Path, export_folder: Path) -> None:
    command = [sys.executable, "-c", f"import sys\n{MAIN}", "serve", str(export_folder), "--port", "0", "--no-history"]
    reader, writer = os.pipe()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, text=True)
    os.close(writer)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            for number in range(800):
                assert client.get("/v1/detectors", headers={"X-Request-ID": f"{number}-{'x' * 100}"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert json.loads(os.read(reader, 65536).split(b"\n")[0])["event"] == "listening"
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        assert process.stdout is not None
        process.stdout.close()
