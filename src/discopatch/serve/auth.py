"""Who may call the service: tokens, compared in constant time, and pages of which origin."""

import hashlib
import hmac
import stat
import sys
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from discopatch.errors import ParameterError
from discopatch.serve.problems import ProblemError, problem_response
from discopatch.serve.settings import ServeSettings

LARGEST_FILE = 2**20
SHORT = 16  # characters; a shorter token could be guessed


class Tokens:
    """The tokens of a file, of which only digests are kept."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [digest_of(token.encode()) for token in tokens]

    @classmethod
    def read(cls, path: Path) -> tuple[Self, list[str]]:
        """One token a line; empty lines and lines that begin with # do not count. Also what is to be warned of."""
        try:
            with path.open("rb") as file:
                text = file.read(LARGEST_FILE + 1).decode()
                mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise ParameterError(f"the tokens in {path} cannot be read ({error}): check the file") from None
        if len(text) > LARGEST_FILE:
            raise ParameterError(f"{path} is no file of tokens: it has more than {LARGEST_FILE:,} bytes")
        lines = (line.strip() for line in text.splitlines())
        tokens = [line for line in lines if line and not line.startswith("#")]
        if not tokens:
            raise ParameterError(f"{path} has no token: write one a line, such as the output of `openssl rand -hex 32`")
        for token in tokens:
            if not token.isascii() or not token.isprintable() or " " in token:
                raise ParameterError(f"{path} has a token with a space or a letter beyond ASCII: write one a line")
        warnings = []
        if sys.platform != "win32" and mode & (stat.S_IRGRP | stat.S_IROTH):  # Windows has other rights
            warnings.append(f"others can read {path}: chmod 600 {path}")
        if any(len(token) < SHORT for token in tokens):
            warnings.append(f"{path} has a token of fewer than {SHORT} characters, which can be guessed")
        return cls(tokens), warnings

    def allow(self, given: bytes) -> bool:
        """Whether it is one of the tokens; takes as long whichever it is, and however much of it is right."""
        digest = digest_of(given)
        return sum(hmac.compare_digest(digest, each) for each in self._digests) > 0


def digest_of(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


class Access:
    """An ASGI layer that refuses, as problems, requests without a token and those that a foreign page makes.

    Without tokens a browser on the machine could be used by any page: so a service that listens on its own machine
    alone answers only under names of that machine, and no POST of a page of another origin is taken.
    """

    def __init__(self, app: ASGIApp, *, settings: ServeSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := self._problem(scope)) is not None:
            await problem_response(scope, problem)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> ProblemError | None:
        headers, tokens = Headers(scope=scope), scope["app"].state.service.tokens
        host = headers.get("host", "")
        if tokens is None and self._settings.is_local and not self._is_own_name(host):
            detail = f"this service is not called {host[:100]!r}: start it with --host-name, or with --token-file"
            return ProblemError(403, "foreign-host", detail)
        origin = headers.get("origin")
        if origin is not None and scope["method"] == "POST" and not self._is_allowed(origin, host):
            detail = f"pages of {origin[:100]!r} may not call this service: start it with --cors {origin[:100]}"
            return ProblemError(403, "foreign-origin", detail)
        if tokens is None or is_public(scope["path"]):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        bearer = given.strip() if kind.lower() == "bearer" else ""
        for each in (bearer, headers.get("x-api-key", "")):
            if each and tokens.allow(each.encode("latin-1", "replace")):
                return None
        detail = "no valid token: send `Authorization: Bearer TOKEN` or `X-API-Key: TOKEN`"
        return ProblemError(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})

    def _is_own_name(self, host: str) -> bool:
        name = host_name(host)
        if name == "localhost" or name in self._settings.host_names:
            return True
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return False

    def _is_allowed(self, origin: str, host: str) -> bool:
        return origin in self._settings.cors or origin.partition("://")[2].lower() == host.lower()


def is_public(path: str) -> bool:
    """Whether it is answered without a token: the page, which asks for one, and what says that the service is there."""
    return path == "/" or path.startswith("/v2/health/")


def host_name(host: str) -> str:
    """Without the port; an address of IPv6 without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
