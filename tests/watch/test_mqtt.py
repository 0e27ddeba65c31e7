"""Messages and state on a real broker: through outages, kills and restarts."""

import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from discopatch.errors import ParameterError
from discopatch.history import History
from discopatch.watch import mqtt, notify
from discopatch.watch.mqtt import Mqtt, parts_of
from discopatch.watch.notify import Delivery

from .samples import PATIENCE, Watched, until
from .streams import free_port
from .test_notify import queue

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = needs_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


class Broker:
    """A mosquitto process that keeps retained messages over a restart."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.port, self._folder = free_port(), folder
        settings = ["persistence true", f"persistence_location {folder}/", "user root", *lines]
        access = [] if any("allow_anonymous" in line for line in lines) else ["allow_anonymous true"]
        (folder / "broker.conf").write_text("\n".join([f"listener {self.port} 127.0.0.1", *access, *settings, ""]))

    def start(self) -> Self:
        assert MOSQUITTO is not None
        command = [MOSQUITTO, "-c", str(self._folder / "broker.conf")]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until(self._is_listening)
        return self

    def _is_listening(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    @contextmanager
    def subscriber(self, **login: str) -> Iterator["list[tuple[str, Any, bool]]"]:
        """The topics and JSON of all messages, and whether they were retained."""
        received: list[tuple[str, Any, bool]] = []
        subscribed = threading.Event()

        def take(client: Client, data: object, found: MQTTMessage) -> None:
            text = found.payload.decode()
            received.append((found.topic, json.loads(text) if text.startswith("{") else text, found.retain))

        client = Client(CallbackAPIVersion.VERSION2, "subscriber", clean_session=False)  # its messages wait for it
        if login:
            client.username_pw_set(**login)
        client.on_connect = lambda *_: client.subscribe("#", 1) and None
        client.on_subscribe = lambda *_: subscribed.set()
        client.on_message = take
        client.reconnect_delay_set(1, 1)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        assert subscribed.wait(PATIENCE)
        try:
            yield received
        finally:
            client.disconnect()
            client.loop_stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    found = Broker(tmp_path).start()
    yield found
    found.stop()


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "history.sqlite") as history:
        yield history


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "LOOK_PAUSE", 0.01)
    monkeypatch.setattr(mqtt, "CONNECT_PAUSE", 0.1)
    monkeypatch.setattr(mqtt, "LONGEST_PAUSE", 1)


@contextmanager
def connected(address: str, name: str = "camera", report: Callable[[str], object] = print) -> Iterator[Mqtt]:
    found = Mqtt(address, name, report)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def delivering(history: History, target: Mqtt) -> Iterator[Delivery]:
    delivery = Delivery(history, "mqtt camera", target.deliver, print, ready=target.ready)
    delivery.start()
    try:
        yield delivery
    finally:
        delivery.stop(PATIENCE)


def events(received: "list[tuple[str, Any, bool]]") -> list[Any]:
    return [content["number"] for topic, content, _ in received if topic.endswith("/event")]


def test_messages_outlast_a_broker_that_is_away_and_come_in_order(broker: Broker, history: History) -> None:
    reports: list[str] = []
    address = f"mqtt://127.0.0.1:{broker.port}/line/3"
    with (
        connected(address, report=reports.append) as target,
        delivering(history, target) as delivery,
        broker.subscriber() as received,
    ):
        queue(history, delivery, 1, 2)
        until(lambda: events(received) == [1, 2])
        broker.stop()
        until(lambda: len(reports) == 1)
        queue(history, delivery, 3, 4, 5)
        threading.Event().wait(1)
        assert history.rows("SELECT tries FROM notifications") == [(0,)] * 3, "no try is used up"
        broker.start()
        until(lambda: delivery.queued() == 0)
        until(lambda: events(received)[-3:] == [3, 4, 5])
        assert set(events(received)) == {1, 2, 3, 4, 5}
    assert len(reports) == 2
    assert "away" in reports[0]
    assert "there again" in reports[1]


def test_a_watch_keeps_its_state_for_late_subscribers(broker: Broker, tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for number in range(40):
        watched.put(f"{number}.png", 5 + number / 100, age=7200 - number)
    with History(watched.database) as history, connected(f"mqtt://127.0.0.1:{broker.port}/line") as target:
        delivery = Delivery(history, "mqtt camera", target.deliver, print, ready=target.ready)
        watched.watcher(history, delivery, put_state=target.put_state).run(once=True)
        with broker.subscriber() as received:
            until(lambda: any(topic == "line/camera/state" for topic, _, _ in received))
            found = {topic: content for topic, content, retained in received if retained}
    state = found["line/camera/state"]
    assert (state["alarm"], state["images"], state["flagged"], state["digest"]) == (True, 40, 40, "0123456789abcdef")
    assert state["last_flagged"]["image"] == "39.png"
    assert state["log10_evidence"] > 2
    assert found["line/camera/availability"] == "online"
    assert not any(topic.endswith("/event") for topic in found)
    with broker.subscriber() as received:
        until(lambda: ("line/camera/availability", "offline", True) in received)


def hold(address: str) -> None:
    Mqtt(address, "camera", print).put_state({"alarm": False})
    threading.Event().wait(PATIENCE)


def test_a_killed_watch_is_offline_and_a_new_one_online(broker: Broker) -> None:
    address = f"mqtt://127.0.0.1:{broker.port}"
    topic = "discopatch/camera/availability"
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(address,))
    process.start()
    with broker.subscriber() as received:
        until(lambda: any(each[:2] == (topic, "online") for each in received))
        process.kill()
        process.join()
        until(lambda: [each[1] for each in received if each[0] == topic][-1] == "offline")
        with connected(address):
            until(lambda: [each[1] for each in received if each[0] == topic][-1] == "online")


def test_home_assistant_finds_an_alarm_and_two_sensors(broker: Broker) -> None:
    with connected(f"mqtt://127.0.0.1:{broker.port}/line", "camera #3/a+b") as target:
        until(target.ready)
    with broker.subscriber() as received:  # later
        until(lambda: any(topic.endswith("availability") for topic, _, _ in received))
    found = {topic: content for topic, content, retained in received if topic.startswith("homeassistant/") and retained}
    kinds = sorted(topic.split("/")[1] for topic in found)
    assert kinds == ["binary_sensor", "sensor", "sensor"]
    for topic, config in found.items():
        *_, identity, last = topic.split("/")
        assert last == "config"
        assert identity == config["unique_id"]
        assert all(letter.isalnum() or letter in "-_" for letter in identity)
        assert config["state_topic"] == "line/camera %233%2Fa%2Bb/state"
        assert config["availability_topic"] == "line/camera %233%2Fa%2Bb/availability"
        assert config["device"]["name"] == "camera #3/a+b"
        assert config["origin"]["name"] == "discopatch"
        assert "value_json." in config["value_template"]
    (alarm,) = (config for topic, config in found.items() if "binary_sensor" in topic)
    assert alarm["device_class"] == "problem"


def test_a_user_logs_in_with_the_password_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch()
    subprocess.run(["mosquitto_passwd", "-b", str(passwords), "me+you", "secret"], check=True)
    broker = Broker(tmp_path, "allow_anonymous false", f"password_file {passwords}").start()
    reports: list[str] = []
    try:
        monkeypatch.setenv("DISCOPATCH_MQTT_PASSWORD", "wrong")
        with connected(f"mqtt://me%2Byou@127.0.0.1:{broker.port}", report=reports.append) as target:
            until(lambda: bool(reports))
            assert not target.ready()
        assert "DISCOPATCH_MQTT_PASSWORD" in reports[0]
        monkeypatch.setenv("DISCOPATCH_MQTT_PASSWORD", "secret")
        with connected(f"mqtt://me%2Byou@127.0.0.1:{broker.port}") as target:
            until(target.ready)
    finally:
        broker.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # paho leaves a refused socket open
def test_an_encrypted_connection_checks_the_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*words.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    broker = Broker(tmp_path, f"certfile {certificate}", f"keyfile {key}").start()
    reports: list[str] = []
    try:
        with connected(f"mqtts://localhost:{broker.port}", report=reports.append) as target:
            until(lambda: bool(reports))
            assert not target.ready()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with connected(f"mqtts://localhost:{broker.port}") as target:
            until(target.ready)
    finally:
        broker.stop()


def test_addresses_have_defaults_and_wrong_ones_are_refused() -> None:
    assert parts_of("mqtt://host") == ("host", 1883, None, "discopatch", False)
    assert parts_of("mqtts://me%40work@host/line%203/cameras/") == ("host", 8883, "me@work", "line 3/cameras", True)
    assert parts_of("mqtt://[::1]:1884/x") == ("::1", 1884, None, "x", False)
    for address in (
        "host",
        "http://host",
        "mqtt://",
        "mqtt://host:x",
        "mqtt://host/a/#",
        "mqtt://host/+",
        "mqtt://h?x",
    ):
        with pytest.raises(ParameterError):
            parts_of(address)
    with pytest.raises(ParameterError, match="DISCOPATCH_MQTT_PASSWORD") as error:
        parts_of("mqtt://me:secret@host")
    assert "secret" not in str(error.value)
