"""Videos that ffmpeg makes, and streams that it sends on this machine."""

import base64
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from .samples import until

needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
PICTURES = "testsrc2=size={size}:rate={rate}"
ENCODED = ("-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-pix_fmt", "yuv420p", "-g", "10")


def ffmpeg(*words: object) -> "subprocess.Popen[bytes]":
    command = ["ffmpeg", "-nostdin", "-y", "-v", "error", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_video(path: Path, *words: object, seconds: float = 10, rate: int = 10, size: str = "160x120") -> Path:
    pictures = PICTURES.format(size=size, rate=rate)
    assert ffmpeg("-f", "lavfi", "-i", pictures, "-t", seconds, *ENCODED, *words, path).wait() == 0
    return path


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def sending(address: str, *words: object, rate: int = 10, size: str = "160x120") -> Iterator["subprocess.Popen[bytes]"]:
    """A process that sends a stream in real time."""
    pictures = PICTURES.format(size=size, rate=rate)
    process = ffmpeg("-re", "-f", "lavfi", "-i", pictures, *ENCODED, *words, address)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Camera:
    """An RTSP server for the pictures that ffmpeg sends to it as RTP: connections are TCP, one track, Basic login."""

    def __init__(self, folder: Path, *, login: str | None = None, rate: int = 10, size: str = "160x120") -> None:
        self._login = login and base64.b64encode(login.encode()).decode()
        self._rtp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._rtp.bind(("127.0.0.1", 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sdp, self._rate, self._size = folder / "camera.sdp", rate, size
        self._clients: list[socket.socket] = []
        self.is_on, self.is_silent, self.requests = True, False, list[str]()

    def __enter__(self) -> Self:
        pictures, port = PICTURES.format(size=self._size, rate=self._rate), self._rtp.getsockname()[1]
        output = ("-f", "rtp", "-sdp_file", self._sdp, f"rtp://127.0.0.1:{port}?pkt_size=1200")
        self._sender = ffmpeg("-re", "-f", "lavfi", "-i", pictures, *ENCODED, *output)
        until(lambda: self._sdp.exists() and "m=video" in self._sdp.read_text())
        for work in (self._forward, self._accept):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._sender.kill()
        self._sender.wait()
        self._rtp.close()
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Breaks all connections."""
        while self._clients:
            with suppress(OSError):
                self._clients.pop().shutdown(socket.SHUT_RDWR)

    def _forward(self) -> None:
        with suppress(OSError):
            while True:
                packet = self._rtp.recv(65536)
                for client in [] if self.is_silent else list(self._clients):
                    with suppress(OSError):
                        client.sendall(b"$\0" + len(packet).to_bytes(2, "big") + packet)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, client.makefile("rb") as lines:
            while self.is_on and (first := lines.read(1)):
                if first == b"$":  # a report of the receiver
                    lines.read(int.from_bytes(lines.read(3)[1:], "big"))
                    continue
                head = first + b"".join(iter(lines.readline, b"\r\n"))
                self._answer(client, head.decode())

    def _answer(self, client: socket.socket, head: str) -> None:
        method, address = head.split()[:2]
        self.requests.append(head)
        fields, body, status = {"CSeq": re.findall(r"CSeq: (\d+)", head)[0], "Session": "1"}, "", "200 OK"
        if self._login and method != "OPTIONS" and f"Basic {self._login}" not in head:
            status, fields["WWW-Authenticate"] = "401 Unauthorized", 'Basic realm="camera"'
        elif method == "OPTIONS":
            fields["Public"] = "OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN, GET_PARAMETER"
        elif method == "DESCRIBE":
            body = re.sub(r"m=video \d+", "m=video 0", self._sdp.read_text().partition("v=0")[2])
            body = f"v=0{body}a=control:track\r\n"
            fields |= {
                "Content-Type": "application/sdp",
                "Content-Base": f"{address}/",
                "Content-Length": f"{len(body)}",
            }
        elif method == "SETUP":
            fields["Transport"] = "RTP/AVP/TCP;unicast;interleaved=0-1"
        lines = [f"RTSP/1.0 {status}", *(f"{name}: {value}" for name, value in fields.items())]
        client.sendall(("\r\n".join(lines) + f"\r\n\r\n{body}").encode())
        if method == "PLAY":
            self._clients.append(client)
