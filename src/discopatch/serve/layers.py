"""The outermost layer of the application: request ids, the log, metrics, errors that nobody expected."""

import asyncio
import re
import secrets
import time
import traceback
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from discopatch.serve.problems import CLIENT_GONE, ProblemError, problem_response

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
LINGER_SECONDS, LINGER_BYTES = 2.0, 2**23  # for clients that read no answer before they have sent everything
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Exchange:
    """One request and its answer, as they pass through the layer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self._receive, self._send, self._id = receive, send, request_id
        self.status = 0
        self.is_gone = False
        self._is_whole = False
        self._waits_for_leave = "expect" in Headers(scope=scope)
        self.received = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.is_gone = True
        else:
            self.received += len(message.get("body", b""))
            self._is_whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self._id
            for name, value in SAFE_HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        elif self.status >= 400 and not message.get("more_body", False) and not self._is_whole:
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _linger(self) -> None:
        """Reads a little of a body that was refused: closed at once, the connection would take the answer with it."""
        most = self.received + LINGER_BYTES
        try:
            async with asyncio.timeout(0 if self._waits_for_leave else LINGER_SECONDS):
                while not self._is_whole and not self.is_gone and self.received < most:
                    await self.receive()
        except TimeoutError:
            pass


class Outermost:
    """Gives every request an id, answers errors that nobody expected as problems, and logs and counts the answer."""

    def __init__(
        self, app: ASGIApp, *, quiet: Iterable[str] = ("/v2/health/live", "/v2/health/ready", "/metrics")
    ) -> None:
        self._app, self._quiet = app, frozenset(quiet)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service, start = scope["app"].state.service, time.monotonic()
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        exchange = Exchange(scope, receive, send, request_id)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            service.log("error", "unexpected", request_id=request_id, detail=repr(error), trace=traceback.format_exc())
            if not exchange.status:
                problem = ProblemError(500, "unexpected", "an error of the service itself; its log has the request_id")
                await problem_response(scope, problem)(scope, receive, exchange.send)
        finally:
            status = CLIENT_GONE if exchange.is_gone and exchange.status in (0, CLIENT_GONE) else exchange.status
            self._note(scope, status, time.monotonic() - start, exchange.received)

    def _note(self, scope: Scope, status: int, seconds: float, received: int) -> None:
        service = scope["app"].state.service
        route = getattr(scope.get("route"), "path", "unmatched")
        service.metrics.answered(route, scope["method"], status, seconds)
        if scope["path"] in self._quiet and status < 400:
            return
        state = scope["state"]
        client = scope.get("client")
        service.log(
            "info" if status < 500 else "error",
            "request",
            request_id=state["request_id"],
            method=scope["method"],
            path=scope["path"][:500],
            status=status,
            milliseconds=round(1000 * seconds, 1),
            received=received,
            client=client[0] if client else None,
            **state.get("noted", {}),
        )
