"""Debian's nginx with the configuration of deploy/, in front of a real service."""

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from discopatch import Runtime
from tests.deploy.dockerfile import DEPLOY
from tests.serve.samples import (
    DETECTOR,
    NAME,
    SCORE,
    Running,
    camera_files,
    form,
    rows_of,
    running,
    wait_until,
)
from tests.watch.streams import free_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="needs nginx, of Debian's package nginx-light"),
]


class Proxied(NamedTuple):
    """A service behind nginx."""

    service: Running
    port: int
    trusted: ssl.SSLContext

    @property
    def answered(self) -> int:
        """Requests that reached the service, without streams of events, whose lines come at their ends."""
        return sum(not line["path"].endswith("/events") for line in self.service.lines("request"))

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"https://localhost:{self.port}", verify=self.trusted, trust_env=False, timeout=60)

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        return self.trusted.wrap_socket(plain, server_hostname="localhost")


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory, export_folder: Path) -> Iterator[Proxied]:
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem")]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(made, check=True, capture_output=True)
    with running(folder / "service", f"{NAME}={export_folder}", "--no-history") as service:
        text = (DEPLOY / "nginx.conf").read_text()
        for shipped, here in (
            ("/tmp/", f"{folder}/"),
            ("server discopatch:8080", f"server {service.address.removeprefix('http://')}"),
            ("listen 8443", f"listen 127.0.0.1:{port}"),
            ("/etc/nginx/tls", str(folder)),
            ("client_header_timeout 10s", "client_header_timeout 1s"),  # so that the tests are short
            ("client_body_timeout 10s", "client_body_timeout 1s"),
        ):
            assert shipped in text
            text = text.replace(shipped, here)
        (folder / "nginx.conf").write_text(text)
        rights = "user root; " if os.geteuid() == 0 else ""  # its processes need the folder of the test
        command = [str(NGINX), "-e", "stderr", "-c", str(folder / "nginx.conf"), "-g", f"{rights}daemon off;"]
        with (folder / "errors").open("w") as errors, subprocess.Popen(command, stderr=errors) as process:
            try:
                wait_until((folder / "nginx.pid").exists)
                assert process.poll() is None, (folder / "errors").read_text()
                yield Proxied(service, port, ssl.create_default_context(cafile=str(folder / "server.pem")))
            finally:
                process.terminate()
                process.wait(60)


def test_images_are_scored_over_https(proxied: Proxied, runtime: Runtime) -> None:
    files = camera_files(2)
    with proxied.client() as client:
        answer = client.post(SCORE, files=form(files), headers={"Origin": f"https://localhost:{proxied.port}"})
        assert answer.json()["predictions"] == rows_of(runtime, files)
        assert client.get("/").headers["content-security-policy"]
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"https://localhost:{proxied.port}/", trust_env=False)  # the certificate is not trusted by default


def test_events_pass_at_once(proxied: Proxied) -> None:
    with proxied.client() as client, client.stream("GET", f"{DETECTOR}/events") as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event")) == "event: monitor"
        client.post(SCORE, files=form([("new.png", camera_files(1)[0][1])]))
        assert next(line for line in lines if line.startswith("event")) == "event: prediction"
        assert '"new.png"' in next(line for line in lines if line.startswith("data"))


def test_a_body_that_is_too_large_never_reaches_the_service(proxied: Proxied) -> None:
    before = proxied.answered
    header = f"POST {SCORE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    with proxied.connect() as connection:
        connection.sendall(f"{header}Content-Length: {64 * 2**20 + 1}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    assert proxied.answered == before


@pytest.mark.parametrize(
    "sent", ["GET / HTTP/1.1\r\nHost: loc", "POST {} HTTP/1.1\r\nHost: l\r\nContent-Length: 9\r\n\r\nx"]
)
def test_a_slow_client_is_cut_off(proxied: Proxied, sent: str) -> None:
    before = proxied.answered
    with proxied.connect() as connection:
        connection.sendall(sent.format(SCORE).encode())
        received = b"".join(iter(lambda: connection.recv(1000), b""))
        assert received == b"" or received.startswith(b"HTTP/1.1 408 ")
    assert proxied.answered == before
