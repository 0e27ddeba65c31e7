"""Messages reach their receivers at least once, whatever these do, and only these."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from discopatch.errors import OutputError, ParameterError
from discopatch.history import History
from discopatch.watch import Command, Delivery, Receiver, Webhook, notify

from .samples import until


class Received(NamedTuple):
    path: str
    key: str | None
    body: dict[str, object]


class Server(ThreadingHTTPServer):
    """A webhook that answers with the status that `answer` gives for each request, and may redirect."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[Received] = []
        self.answer: Callable[[Received], int | str] = lambda received: 200
        self.ending = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        received = Received(self.path, self.headers["Idempotency-Key"], json.loads(body))
        self.server.received.append(received)
        answer = self.server.answer(received)
        if isinstance(answer, str):
            status, _, place = answer.partition(" ")
            self.send_response(int(status))
            self.send_header("Location", place)
        elif answer == 0:  # hangs
            self.server.ending.wait(60)
            return
        else:
            self.send_response(answer)
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


def message(number: int) -> str:
    return json.dumps({"id": f"key-{number}", "event": "alarm", "detector": "camera", "number": number})


def queue(history: History, delivery: Delivery, *numbers: int, alarm: int | None = 1) -> None:
    with history.transaction() as change:
        for number in numbers:
            delivery.add(change, alarm, message(number))
    delivery.wake()


@contextmanager
def running(
    history: History, receiver: Receiver, *, tries: int = 4, reports: list[str] | None = None
) -> Iterator[Delivery]:
    report = (list[str]() if reports is None else reports).append
    delivery = Delivery(history, receiver, "camera", report=report, first_pause=0.01, tries=tries)
    delivery.start()
    try:
        yield delivery
    finally:
        delivery.stop(30)


def test_a_message_is_posted_once_with_its_key_and_leaves_the_queue(history: History, server: Server) -> None:
    with running(history, Webhook(server.url)) as delivery:
        queue(history, delivery, 1, 2, 3)
        delivery.flush(30)
        assert delivery.queued() == 0
    assert [each.key for each in server.received] == ["key-1", "key-2", "key-3"]
    assert server.received[0].body == json.loads(message(1))


def test_a_webhook_that_fails_is_tried_again_with_the_same_key(history: History, server: Server) -> None:
    server.answer = lambda received: 500 if len(server.received) < 3 else 204
    reports: list[str] = []
    with running(history, Webhook(server.url), reports=reports) as delivery:
        queue(history, delivery, 1)
        until(lambda: delivery.queued() == 0)
    assert [each.key for each in server.received] == ["key-1"] * 3
    assert len(reports) == 1
    assert "500" in reports[0]


def test_tries_are_bounded_and_the_pauses_grow(history: History, server: Server) -> None:
    server.answer = lambda received: 404
    reports: list[str] = []
    with running(history, Webhook(server.url), tries=4, reports=reports) as delivery:
        queue(history, delivery, 1)
        until(lambda: delivery.queued() == 0)
    assert len(server.received) == 4
    assert "given up" in reports[-1]
    assert "404" in reports[-1]


def test_pauses_double_up_to_an_hour(history: History, server: Server) -> None:
    server.answer = lambda received: 503
    delivery = Delivery(history, Webhook(server.url), "camera", report=print)
    queue(history, delivery, 1)
    pauses = []
    for _ in range(notify.TRIES - 1):
        with history.transaction() as change:
            change.execute("UPDATE notifications SET due = 0")
        delivery._deliver_due()
        ((due,),) = history.rows("SELECT due FROM notifications")
        pauses.append(round(due - time.time()))
    assert pauses == [min(3600, 2**number) for number in range(notify.TRIES - 1)]
    assert 8 * 3600 < sum(pauses) < 10 * 3600


def test_nobody_there_and_nobody_answering_are_failures_like_any_other(history: History, server: Server) -> None:
    server.answer = lambda received: 0 if len(server.received) == 1 else 200
    with running(history, Webhook(server.url, timeout=0.2)) as delivery:
        queue(history, delivery, 1)
        until(lambda: delivery.queued() == 0)
    assert [each.key for each in server.received] == ["key-1"] * 2
    reports: list[str] = []
    with running(history, Webhook("http://127.0.0.1:1/hook"), tries=2, reports=reports) as delivery:
        queue(history, delivery, 2)
        until(lambda: delivery.queued() == 0)
    assert len(reports) == 2


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_is_not_followed(history: History, server: Server, status: int) -> None:
    with serving() as other:
        server.answer = lambda received: f"{status} {other.url}"
        with running(history, Webhook(server.url), tries=2) as delivery:
            queue(history, delivery, 1)
            until(lambda: delivery.queued() == 0)
        assert other.received == []
    assert len(server.received) == 2


@pytest.mark.parametrize("url", ["ftp://host/", "file:///etc/passwd", "host/path", "https://", ""])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ParameterError):
        Webhook(url)


def test_messages_survive_a_restart_and_go_to_the_new_address(history: History, server: Server) -> None:
    dead = Delivery(history, Webhook("http://127.0.0.1:1/"), "camera", report=print)
    other = Delivery(history, Webhook(server.url), "another camera", report=print)
    queue(history, dead, 1, 2)
    queue(history, other, 3)
    with running(history, Webhook(server.url)) as delivery:
        until(lambda: delivery.queued() == 0)
    assert [each.key for each in server.received] == ["key-1", "key-2"]
    assert other.queued() == 1


def test_messages_about_images_are_bounded_and_give_way_to_alarms(
    history: History, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "MOST_QUEUED", 5)
    delivery = Delivery(history, Webhook(server.url), "camera", report=print)
    queue(history, delivery, 100, alarm=7)
    queue(history, delivery, *range(20), alarm=None)
    queue(history, delivery, 101, alarm=8)
    assert delivery.queued() == 7
    delivery._deliver_due()
    assert [each.body["number"] for each in server.received] == [100, 101, 15, 16, 17, 18, 19]


def test_a_command_gets_the_message_and_variables_and_no_shell(history: History, tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out.json"
    script.write_text(
        "import json, os, sys\n"
        "found = {name: value for name, value in os.environ.items() if name.startswith('DISCOPATCH_')}\n"
        "json.dump([sys.argv[2:], json.load(sys.stdin), found], open(sys.argv[1], 'w'))\n"
        "print('printed')\n"
    )
    with running(history, Command(f"{sys.executable} {script} {out} '$HOME' '*' 'two words'")) as delivery:
        queue(history, delivery, 1)
        until(lambda: delivery.queued() == 0)
    arguments, body, environment = json.loads(out.read_text())
    assert arguments == ["$HOME", "*", "two words"]
    assert body == json.loads(message(1))
    assert environment["DISCOPATCH_EVENT"] == "alarm"
    assert environment["DISCOPATCH_ID"] == "key-1"
    assert environment["DISCOPATCH_TRY"] == "1"


def test_a_command_that_hangs_is_killed_with_its_children(history: History, tmp_path: Path) -> None:
    code = "import os, time; open(os.environ['PIDS'], 'a').write(f'{os.getpid()} '); os.fork(); time.sleep(600)"
    reports: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIDS", str(tmp_path / "pids"))
        command = Command(f'{sys.executable} -c "{code}"', timeout=2)
        with running(history, command, tries=1, reports=reports) as delivery:
            queue(history, delivery, 1)
            until(lambda: delivery.queued() == 0)
    assert "did not end" in reports[0]
    pid = int((tmp_path / "pids").read_text())
    until(lambda: not group_exists(pid))


def group_exists(pid: int) -> bool:
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            return True
    return False


def test_commands_that_are_none_are_failures_or_refused(history: History) -> None:
    reports: list[str] = []
    with running(history, Command("/nowhere/at/all"), tries=1, reports=reports) as delivery:
        queue(history, delivery, 1)
        until(lambda: delivery.queued() == 0)
    assert "cannot be started" in reports[0]
    for command in ("", "  ", "echo 'open"):
        with pytest.raises(ParameterError):
            Command(command)


def test_a_receiver_that_hangs_does_not_hold_up_the_end(history: History, server: Server) -> None:
    server.answer = lambda received: 0
    delivery = Delivery(history, Webhook(server.url, timeout=600), "camera", report=print)
    delivery.start()
    queue(history, delivery, 1)
    until(lambda: len(server.received) == 1)
    delivery.stop(0.1)
    assert delivery.queued() == 1


def test_a_message_that_cannot_be_removed_from_the_queue_is_not_sent_again_and_again(
    history: History, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = Delivery(history, Webhook(server.url), "camera", report=print)
    queue(history, delivery, 1)

    def full() -> NoReturn:
        raise OutputError(28, "full", "history")

    with monkeypatch.context() as patch:
        patch.setattr(history, "transaction", full)
        for _ in range(3):
            with pytest.raises(OutputError):
                delivery._deliver_due()
    delivery._deliver_due()
    assert delivery.queued() == 0
    assert len(server.received) == 1
