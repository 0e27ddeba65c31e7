"""Settings of the service. Most fields are options of `discopatch serve`."""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, get_args

from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_LIMITS
from discopatch.schema import Positive, between, check_fields, length

MIB = 2**20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SHORTEST_TOKEN = 16  # characters
Role = Literal["read", "score", "admin"]  # of a token; each may do all that those before it may
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The detectors by name, the address, and every limit of the service."""

    detectors: Annotated[dict[str, Path], length(1, 1000)]
    host: str = "127.0.0.1"
    port: Annotated[int, between(0, 65535)] = 8080
    token_file: Path | None = None
    require_signature: Path | None = None  # public key of minisign by which each detector must be signed
    history: str | None = None  # a file, or postgresql://...; None: the last predictions are kept in memory
    keep: Positive = 100_000  # predictions of each detector in the history
    rate: Annotated[float, between(1e-12, 0.5)] = 0.01  # false alarms of the monitor
    device: str = "auto"
    networks: tuple[str, ...] = ()  # where outside networks lie now, such as dinov2=FOLDER
    batch_size: Positive | None = None  # images that a torch detector scores together; None: those of its device
    threads: Positive | None = None  # scoring threads; default: one per core for exports, one for torch detectors
    max_pixels: Positive = DEFAULT_LIMITS.max_pixels
    max_decoded: Positive | None = None  # pixels that all threads decode at the same time; default: max_pixels
    max_bytes: Positive = 64 * MIB  # of one image
    max_request_bytes: Positive = 128 * MIB
    max_json_bytes: Positive = 16 * MIB  # JSON takes several times its size in memory
    max_files: Positive = 64  # in one request
    max_queue: Positive = 256  # images in the queue
    max_connections: Positive = 512
    client_rate: Positive | None = None  # images a minute of each token, or of each address without tokens
    timeout: Annotated[float, between(0.01, 86_400)] = 60  # seconds from the whole request to its answer

    def __post_init__(self) -> None:
        check_fields(self)
        for name in self.detectors:
            if NAME.fullmatch(name) is None:
                allowed = "use up to 64 letters, digits, dots, dashes and underscores, as in camera-3=/path/to/file"
                raise ParameterError(f"{name!r} cannot be a detector's name: {allowed}")
        if self.max_files > self.max_queue:
            raise ParameterError(f"max_files={self.max_files} exceeds max_queue={self.max_queue}: raise max_queue")


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach the host."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def read_tokens(path: Path) -> dict[bytes, Role]:
    """The tokens of a file and their roles, one per line as in `read TOKEN`; a token without a role has all rights.

    Empty lines and lines that begin with # are ignored.
    """
    try:
        lines = [line.strip() for line in path.read_text("ascii").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"the tokens in {path} cannot be read ({error}): check the file") from None
    tokens: dict[bytes, Role] = {}
    for line in (each for each in lines if each and not each.startswith("#")):
        role, _, token = line.rpartition(" ")
        role = role.strip() or "admin"
        if role not in ROLES or len(token) < SHORTEST_TOKEN or token.encode() in tokens:
            tokens.clear()
            break
        tokens[token.encode()] = role
    if not tokens:
        remedy = f"of at least {SHORTEST_TOKEN} characters, as `openssl rand -hex 32` prints"
        raise ParameterError(f"{path} needs one line for each token, as in `read TOKEN` ({', '.join(ROLES)}), {remedy}")
    return tokens
