"""Messages reach their receivers at least once, whatever these do, and only these."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from discopatch.errors import ParameterError
from discopatch.history import History
from discopatch.watch import notify
from discopatch.watch.notify import Deliver, Delivery, command, webhook

from .samples import until


class Received(NamedTuple):
    key: str | None
    body: dict[str, object]


class Server(ThreadingHTTPServer):
    """A webhook that answers with the status that `answer` gives for each request, or redirects to an address."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[Received] = []
        self.answer: Callable[[Received], int | str] = lambda received: 200
        self.ending = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        received = Received(self.headers["Idempotency-Key"], json.loads(body))
        self.server.received.append(received)
        answer = self.server.answer(received)
        if answer == 0:  # hangs
            self.server.ending.wait(60)
            return
        self.send_response(302 if isinstance(answer, str) else answer)
        self.send_header("Location", str(answer))
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.ending.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "history.sqlite") as history:
        yield history


@pytest.fixture(autouse=True)
def few_quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FIRST_PAUSE", 0.01), ("LOOK_PAUSE", 0.01), ("TRIES", 4)):
        monkeypatch.setattr(notify, name, value)


def message(number: int) -> str:
    return json.dumps({"id": f"key-{number}", "event": "alarm", "detector": "camera", "number": number})


def queue(history: History, delivery: Delivery, *numbers: int) -> None:
    with history.transaction():
        for number in numbers:
            delivery.add(message(number))
    delivery.wake.set()


def deliver(history: History, receiver: Deliver, *numbers: int) -> list[str]:
    """What a thread reports until these messages and those queued before have left the queue."""
    reports: list[str] = []
    delivery = Delivery(history, "camera", receiver, reports.append)
    delivery.start()
    queue(history, delivery, *numbers)
    until(lambda: delivery.queued() == 0)
    delivery.stop(30)
    return reports


def test_a_message_is_posted_once_with_its_key_and_leaves_the_queue(history: History, server: Server) -> None:
    delivery = Delivery(history, "camera", webhook(server.url), print)
    delivery.start()
    queue(history, delivery, 1, 2, 3)
    delivery.stop(30, finish=True)
    assert delivery.queued() == 0
    assert server.received == [Received(f"key-{number}", json.loads(message(number))) for number in (1, 2, 3)]


@pytest.mark.parametrize("failure", [500, 0])
def test_a_webhook_that_fails_or_hangs_is_tried_again_with_the_same_key(
    history: History, server: Server, failure: int
) -> None:
    server.answer = lambda received: failure if len(server.received) < 3 else 204
    assert len(deliver(history, webhook(server.url, timeout=0.2), 1)) == 1
    assert [each.key for each in server.received] == ["key-1"] * 3


def test_tries_are_bounded_and_the_pauses_double(
    history: History, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "FIRST_PAUSE", 100.0)
    server.answer = lambda received: 404
    reports, pauses = list[str](), []
    delivery = Delivery(history, "camera", webhook(server.url), reports.append)
    queue(history, delivery, 1)
    while delivery.queued():
        with history.transaction():
            history.execute("UPDATE notifications SET due = 0")
        delivery.deliver_due()
        pauses += [round(due - time.time(), -2) for (due,) in history.rows("SELECT due FROM notifications")]
    assert pauses == [100, 200, 400]
    assert len(server.received) == 4
    assert "404" in reports[-1]


def test_a_redirect_is_not_followed(history: History, server: Server) -> None:
    with serving() as other:
        server.answer = lambda received: other.url
        deliver(history, webhook(server.url), 1)
        assert other.received == []
    assert len(server.received) == 4


def test_other_addresses_and_commands_without_words_are_refused() -> None:
    for url in ("ftp://host/", "file:///etc/passwd", "host/path", "https://"):
        with pytest.raises(ParameterError):
            webhook(url)
    for text in ("  ", "echo 'open"):
        with pytest.raises(ParameterError):
            command(text)


def test_messages_survive_a_restart_and_go_to_the_new_address(history: History, server: Server) -> None:
    queue(history, Delivery(history, "camera", webhook("http://127.0.0.1:1/"), print), 1, 2)
    other = Delivery(history, "another camera", webhook(server.url), print)
    queue(history, other, 3)
    deliver(history, webhook(server.url))
    assert [each.key for each in server.received] == ["key-1", "key-2"]
    assert other.queued() == 1


def test_a_command_gets_the_message_and_no_shell(history: History, tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out.json"
    script.write_text("import json, sys\njson.dump([sys.argv[2:], json.load(sys.stdin)], open(sys.argv[1], 'w'))\n")
    deliver(history, command(f"{sys.executable} {script} {out} '$HOME' '*' 'two words'"), 1)
    assert json.loads(out.read_text()) == [["$HOME", "*", "two words"], json.loads(message(1))]


@pytest.mark.parametrize("text", ["/nowhere/at/all", "false", "sleep 600"])
def test_commands_that_fail_or_hang_are_given_up(history: History, text: str) -> None:
    first, last = deliver(history, command(text, timeout=0.2), 1)
    assert text.split()[0] in first
    assert "given up" in last
