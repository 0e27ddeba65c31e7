"""What one may choose about the service; each field is a flag of `discopatch serve`."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path

from discopatch.errors import ParameterError
from discopatch.hub import Located, is_address, locate
from discopatch.images import DEFAULT_LIMITS

MIB = 2**20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ORIGIN = re.compile(r"https?://[^/\s*]+")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The detectors by name, where to listen, and every limit of the service."""

    detectors: dict[str, Path]
    host: str = "127.0.0.1"
    port: int = 8080
    token_file: Path | None = None
    cors: tuple[str, ...] = ()  # origins whose pages may call the service
    host_names: tuple[str, ...] = ()  # further names under which a service without tokens is called
    history: Path | None = None  # None: nothing is written, the last images are kept in memory
    keep: int = 100_000  # predictions of each detector in the history
    device: str = "auto"
    weights: tuple[str, ...] = ()  # where networks from outside lie now, such as dinov2=FOLDER
    batch_size: int = 8  # images that a detector of torch takes at once
    threads: int | None = None  # that score; by default one a core for exports, and one for detectors of torch
    monitor_rate: float = 0.01  # of false alarms of the monitor, over a stream of any length
    max_pixels: int = DEFAULT_LIMITS.max_pixels
    max_bytes: int = 64 * MIB  # of one image
    max_request_bytes: int = 128 * MIB
    max_json_bytes: int = 16 * MIB  # of a body of JSON, which takes several times as much memory
    max_files: int = 64  # in one request
    max_queue: int = 256  # images that wait
    max_queue_bytes: int = 512 * MIB  # of images that wait or are being uploaded
    max_connections: int = 512
    max_listeners: int = 64  # readers of events
    header_seconds: float = 10  # until a request's header is there
    body_seconds: float = 120  # until its body is there
    min_rate: int = 10_000  # bytes a second of a body, after the first seconds
    timeout: float = 60  # seconds from the whole request to its answer
    drain: float = 1  # seconds in which a service that stops still listens, and says that it is not ready

    def __post_init__(self) -> None:
        if not self.detectors:
            raise ParameterError("no detector to serve: name at least one file or folder")
        for name in self.detectors:
            check_name(name)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.startswith(("max_", "min_")) or field.name in ("keep", "batch_size"):
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ParameterError(f"{field.name} is {value!r}: give a whole number, at least 1")
            elif field.type is float and not value >= 0:
                raise ParameterError(f"{field.name} is {value!r}: give a number, at least 0")
        if self.threads is not None and self.threads < 1:
            raise ParameterError(f"threads is {self.threads}: give at least 1, or None")
        if not 0 < self.monitor_rate < 1:
            raise ParameterError(f"monitor_rate is {self.monitor_rate}: give a share between 0 and 1, such as 0.01")
        if self.max_files > self.max_queue:
            raise ParameterError(
                f"max_files={self.max_files} would never fit into max_queue={self.max_queue}: raise max_queue"
            )
        if max(self.max_bytes, self.max_request_bytes, self.max_json_bytes) > self.max_queue_bytes:
            raise ParameterError(
                f"max_queue_bytes={self.max_queue_bytes:,} must hold at least one request: raise it, "
                "or lower max_bytes, max_request_bytes and max_json_bytes"
            )
        for origin in self.cors:
            if ORIGIN.fullmatch(origin) is None:
                raise ParameterError(f"{origin!r} is no origin: give one such as https://factory.example")

    @property
    def is_local(self) -> bool:
        """Whether the service can be reached from its own machine alone."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def check_name(name: str) -> None:
    """ParameterError unless it can stand in an address."""
    if NAME.fullmatch(name) is None:
        raise ParameterError(
            f"{name!r} cannot be a detector's name: use up to 64 letters, digits, dots, dashes and underscores, as in "
            "camera-3=/path/to/file"
        )


def named_paths(given: Sequence[str], find: Callable[[str], Located] = locate) -> dict[str, Path]:
    """The detectors of NAME=PATH, or of paths, which are then named after the file or folder without its ending.

    A path may be an address of the hub, too, which is named after its repository.
    """
    found: dict[str, Path] = {}
    for each in given:
        name, equals, place = each.partition("=")
        if not (equals and NAME.fullmatch(name)):
            name, place = "", each
        located = find(place)
        if not name:
            name = located.name if is_address(place) else Path(place).name.removesuffix(".safetensors") or located.name
        check_name(name)
        if name in found:
            raise ParameterError(f"two detectors are named {name}: name one yourself, as in {name}-2={place}")
        found[name] = located.path
    return found


def default_history(port: int) -> Path:
    """A file in the user's folder for states of programs; services on one machine differ by their port."""
    given = os.environ.get("XDG_STATE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
    return root / "discopatch" / f"serve-{port}.sqlite"
