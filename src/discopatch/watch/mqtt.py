"""Messages and a retained state on an MQTT broker, with discovery for Home Assistant."""

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from discopatch.errors import ParameterError
from discopatch.utils import require
from discopatch.version import __version__

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessageInfo

PASSWORD = "DISCOPATCH_MQTT_PASSWORD"  # environment variable
PREFIX = "discopatch"  # of topics, unless the address has one
PORTS = {"mqtt": 1883, "mqtts": 8883}
TIMEOUT = 10.0  # seconds for the broker to confirm a message
CONNECT_PAUSE = 2.0  # seconds of the longest wait for a connection
FIRST_PAUSE, LONGEST_PAUSE = 1, 30  # seconds between tries to connect
FORBIDDEN = re.compile(r"[%#+/\x00-\x1f\x7f]")  # in a level of a topic; % is the escape
ENTITIES = (  # of Home Assistant: kind, identity, name and the template of the value in the state
    ("binary_sensor", "alarm", "Alarm", "'ON' if value_json.alarm else 'OFF'"),
    ("sensor", "evidence", "Evidence (power of 10)", "value_json.log10_evidence | round(2)"),
    ("sensor", "flagged", "Flagged images", "(100 * value_json.flagged / [value_json.images, 1] | max) | round(2)"),
)


class Mqtt:
    """A connection to a broker that is opened again when it breaks; `report` is called with messages for the user.

    Messages go to PREFIX/NAME/event, the state, which the broker retains, to PREFIX/NAME/state, and "online" or
    "offline" to PREFIX/NAME/availability, also after a kill. The identity at the broker is that of the topics: a new
    connection ends the one before.
    """

    def __init__(self, address: str, name: str, report: Callable[[str], object]) -> None:
        require("paho", extra="mqtt")
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion

        host, port, user, prefix, encrypted = parts_of(address)
        self._place, self._name, self._report = f"{host}:{port}", name, report
        self._topic = f"{prefix}/{FORBIDDEN.sub(lambda found: f'%{ord(found[0]):02X}', name)}"
        self._key = f"discopatch-{hashlib.sha256(self._topic.encode()).hexdigest()[:12]}"
        self._state: str | None = None
        self._connected, self._is_away = threading.Event(), False
        self._client = Client(CallbackAPIVersion.VERSION2, self._key)
        if user is not None:
            self._client.username_pw_set(user, os.environ.get(PASSWORD))
        if encrypted:
            self._client.tls_set()
        self._client.will_set(f"{self._topic}/availability", "offline", 1, retain=True)
        self._client.reconnect_delay_set(FIRST_PAUSE, LONGEST_PAUSE)
        self._client.on_connect = lambda client, data, flags, reason, more: self._on_connect(reason)
        self._client.on_disconnect = lambda client, data, flags, reason, more: self._on_away(f"{reason}")
        self._client.on_connect_fail = lambda client, data: self._on_away("no connection")
        self._client.connect_async(host, port)
        self._client.loop_start()

    def ready(self) -> bool:
        """Whether there is a connection, now or within CONNECT_PAUSE."""
        return self._connected.wait(CONNECT_PAUSE)

    def deliver(self, body: str) -> None:
        """Publishes a message; TimeoutError if the broker does not confirm it in time: it may come twice then."""
        info = self._publish("event", body, retain=False)
        info.wait_for_publish(TIMEOUT)
        if not info.is_published():
            raise TimeoutError(f"{self._place} does not confirm it")

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Publishes the state, now or with the next connection."""
        self._state = json.dumps({**state, "time": datetime.now(UTC).isoformat()})
        if self._connected.is_set():
            self._publish("state", self._state)

    def close(self) -> None:
        if self._connected.is_set():
            self._publish("availability", "offline").wait_for_publish(CONNECT_PAUSE)
        self._is_away = True  # nothing more is reported
        self._client.disconnect()
        self._client.loop_stop()

    def _publish(self, level: str, content: str, *, retain: bool = True) -> "MQTTMessageInfo":
        from paho.mqtt.enums import MQTTErrorCode

        topic = level if "/" in level else f"{self._topic}/{level}"
        info = self._client.publish(topic, content, 1, retain)
        info.rc = MQTTErrorCode.MQTT_ERR_SUCCESS  # without a connection it is kept for the next one
        return info

    def _on_connect(self, reason: Any) -> None:
        if reason.is_failure:
            self._on_away(f"{reason}: check user and {PASSWORD}")
            return
        self._connected.set()  # first, so that a new state is published here or by `put_state`
        for topic, content in self.discovery().items():
            self._publish(topic, json.dumps(content))
        self._publish("availability", "online")
        if self._state is not None:
            self._publish("state", self._state)
        if self._is_away:
            self._is_away = False
            self._report(f"{self._place} is there again")

    def _on_away(self, reason: str) -> None:
        self._connected.clear()
        if not self._is_away:
            self._is_away = True
            self._report(f"{self._place} is away ({reason}): messages stay queued")

    def discovery(self) -> dict[str, dict[str, Any]]:
        """The configurations of the entities of Home Assistant by their topics."""
        shared = {
            "state_topic": f"{self._topic}/state",
            "availability_topic": f"{self._topic}/availability",
            "device": {"identifiers": [self._key], "name": self._name, "manufacturer": "discopatch"},
            "origin": {"name": "discopatch", "sw_version": __version__},
        }
        return {
            f"homeassistant/{kind}/{self._key}-{which}/config": {
                **shared,
                **({"device_class": "problem"} if kind == "binary_sensor" else {"state_class": "measurement"}),
                **({"unit_of_measurement": "%"} if which == "flagged" else {}),
                "name": name,
                "unique_id": f"{self._key}-{which}",
                "value_template": f"{{{{ {template} }}}}",
            }
            for kind, which, name, template in ENTITIES
        }


def parts_of(address: str) -> tuple[str, int, str | None, str, bool]:
    """Host, port, user, prefix of topics, and whether it is encrypted; ParameterError if it is no address."""
    parts = urlsplit(address)
    prefix = unquote(parts.path).strip("/") or PREFIX
    try:
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError):
        port = 0
    if not port or not parts.hostname or "#" in address or "?" in address or re.search(r"[+#\x00-\x1f]", prefix):
        raise ParameterError("--mqtt is no address of a broker: give one such as mqtts://user@host/topic/prefix")
    if parts.password is not None:
        raise ParameterError(
            f"--mqtt has a password, which other users of this machine can see: put it into {PASSWORD}"
        )
    user = None if parts.username is None else unquote(parts.username)
    return parts.hostname, port, user, prefix, parts.scheme == "mqtts"
