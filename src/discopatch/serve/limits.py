"""The border of the service: access, bodies of requests and their sizes, and errors as problem details (RFC 9457)."""

import asyncio
import base64
import logging
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from hashlib import sha256
from http import HTTPStatus
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.datastructures import Headers, MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from discopatch.errors import StoreError
from discopatch.images import Item
from discopatch.serve.metrics import Metrics, log_event
from discopatch.serve.settings import ROLES, Role, ServeSettings, is_loopback
from discopatch.utils import escaped

if TYPE_CHECKING:
    from discopatch.serve.service import Service

PROBLEM_TYPE = "urn:discopatch:problem:"
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
RAW_TYPES = ("", "application/octet-stream", "binary/octet-stream")
LONGEST_NAME = 300
UPLOAD_SECONDS = 120
BODIES_AT_ONCE = 4  # largest bodies of requests that are held at the same time
MOST_CLIENTS = 10_000  # whose rate is known; of others the rate begins anew
CLIENT_GONE = 499  # status in the log of a request whose client disconnected
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")  # counted by name
QUIET = ("/v2/health/live", "/v2/health/ready", "/metrics")  # not logged
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Number = Annotated[int, Field(ge=1, le=2**63 - 1)]
ImageDigest = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class Problem(BaseModel):
    """Problem details (RFC 9457), which may have further fields."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description=f"{PROBLEM_TYPE} and the kind of problem, such as queue-full")
    title: str
    status: int
    detail: str = Field(description="What is wrong and what to do about it")
    instance: str
    request_id: str


CONTENT = {"application/problem+json": {"schema": Problem.model_json_schema()}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request cannot be answered; `detail` names the remedy.", "content": CONTENT},
    "5XX": {"description": "Busy, stopping or failed; with `Retry-After`, try again later.", "content": CONTENT},
}


class ProblemError(HTTPException):
    """An HTTP error. `kind` is the end of its type, such as queue-full; `more` are further fields."""

    def __init__(
        self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(status, detail, headers)
        self.kind, self.more = kind, more


def busy(kind: str, detail: str) -> ProblemError:
    """503, with the time after which a client should try again."""
    return ProblemError(503, kind, detail, {"Retry-After": "5"})


def invalid(detail: str) -> ProblemError:
    return ProblemError(422, "invalid", detail)


def too_large(what: str, limit: int) -> ProblemError:
    return ProblemError(413, "too-large", f"{what}; a request may have at most {limit:,}: send less at once")


def problem_response(scope: Scope, error: HTTPException) -> JSONResponse:
    """The error as JSON. Below /v2 it also has the field `error` of the Open Inference Protocol."""
    title = HTTPStatus(error.status_code).phrase
    content: dict[str, Any] = {
        "type": PROBLEM_TYPE + getattr(error, "kind", title.lower().replace(" ", "-")),
        "title": title,
        "status": error.status_code,
        "detail": error.detail,
        "instance": scope["path"].encode("utf-8", "replace").decode(),
        "request_id": scope["state"]["request_id"],
        **getattr(error, "more", {}),
    }
    if scope["path"].startswith("/v2"):
        content["error"] = error.detail
    return JSONResponse(content, error.status_code, error.headers, media_type="application/problem+json")


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """The handler of HTTP errors, of parameters and bodies that do not fit, and of a history that cannot be read."""
    if isinstance(error, StoreError):
        error = busy("history", str(error))
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        error = invalid(f"{'.'.join(map(str, first['loc']))[:200]}: {first['msg'][:500]}")
    assert isinstance(error, HTTPException)
    return problem_response(request.scope, error)


class ClientRates:
    """Images that each client may send now: at most those of a minute, refilled evenly (a token bucket).

    A request may have more images than are left, and later requests of its client wait for them.
    """

    def __init__(self, per_minute: int | None) -> None:
        self._per_minute = per_minute
        self._left: dict[str, tuple[float, float]] = {}  # images and time, by client; the latest are the last

    def take(self, state: Mapping[str, Any], images: int) -> None:
        """Takes images from the client of a request, or raises 429 where none are left. The state is the request's."""
        if self._per_minute is None:
            return
        client, now = str(state.get("token", state["client"])), monotonic()
        before, since = self._left.pop(client, (self._per_minute, now))
        left = min(self._per_minute, before + (now - since) * self._per_minute / 60)
        self._left[client] = (left - images if left >= 1 else left), now
        if len(self._left) > MOST_CLIENTS:
            del self._left[next(iter(self._left))]
        if left < 1:
            detail = f"more than {self._per_minute:,} images a minute of one client: send the next ones later"
            seconds = ceil((1 - left) * 60 / self._per_minute)
            raise ProblemError(429, "client-rate", detail, {"Retry-After": str(seconds)})


class Border:
    """ASGI middleware of every request: id, access, size, unexpected errors, log line and metrics."""

    def __init__(self, app: ASGIApp, *, service: "Service") -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service, headers, start, status, held = self._service, Headers(scope=scope), monotonic(), 0, 0
        method = scope["method"]
        if method == "HEAD":  # as GET, without the body; the server looks at the method of its own scope
            scope = {**scope, "method": "GET"}
        given, declared = headers.get("x-request-id", ""), headers.get("content-length", "")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        client = scope["client"][0] if scope.get("client") else None
        scope.setdefault("state", {}).update(request_id=request_id, client=client)
        limit = service.settings.max_request_bytes
        if "json" in headers.get("content-type", ""):
            limit = min(limit, service.settings.max_json_bytes)

        async def receive_limited() -> Message:
            nonlocal held
            message = await receive()
            size = len(message.get("body", b""))
            held += size
            service.held_bytes += size
            if held > limit:
                raise too_large("more bytes", limit)
            if size and service.held_bytes > BODIES_AT_ONCE * service.settings.max_request_bytes:
                raise busy("queue-full", "too many bytes of images are being processed: try again later")
            return message

        async def send_safe(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                answered["X-Request-ID"] = request_id
                for name, value in SAFE_HEADERS.items():
                    answered.setdefault(name, value)
            if method != "HEAD":
                await send(message)
            elif message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body"})

        try:
            check_access(scope, headers, service)
            if declared.isdecimal() and int(declared) > limit:
                raise too_large(f"{int(declared):,} bytes", limit)
            await self._app(scope, receive_limited, send_safe)
        except HTTPException as error:
            await problem_response(scope, error)(scope, receive, send_safe)
        except ClientDisconnect:
            status = CLIENT_GONE
        except Exception:
            log_event(logging.ERROR, "unexpected", exc_info=True, request_id=request_id)
            if not status:
                problem = ProblemError(500, "unexpected", "an error of the service; its log has the request_id")
                await problem_response(scope, problem)(scope, receive, send_safe)
        finally:
            service.held_bytes -= held
            note({**scope, "method": method}, status, monotonic() - start, service.metrics)


def note(scope: Scope, status: int, seconds: float, metrics: Metrics) -> None:
    """Counts a request, and logs it unless it is one of QUIET."""
    route = getattr(scope.get("route"), "path", "unmatched")
    method = scope["method"] if scope["method"] in METHODS else "other"
    metrics.requests.labels(route, method, str(status)).inc()
    metrics.seconds.labels(route).observe(seconds)
    if scope["path"] not in QUIET or status >= 400:
        log_event(
            logging.ERROR if status >= 500 and status != 503 else logging.INFO,
            "request",
            method=scope["method"],
            path=scope["path"][:500],
            status=status,
            milliseconds=round(1000 * seconds, 1),
            **scope["state"],
        )


def check_access(scope: Scope, headers: Headers, service: "Service") -> None:
    """Raises 401 without a token, and 403 for another role or for requests that a page of another origin makes.

    Without tokens, any page in a browser on this machine could call a local service under a host name of its own (DNS
    rebinding). Such a service therefore answers only under names of this machine.
    """
    host, origin, tokens = headers.get("host", ""), headers.get("origin"), service.tokens
    name = re.sub(r":\d+$", "", host).strip("[]").lower()
    if tokens is None and is_loopback(service.settings.host) and not is_loopback(name):
        raise ProblemError(403, "foreign-host", f"this service is not called {host[:100]!r}: use --token-file")
    if origin and scope["method"] == "POST" and origin.partition("://")[2] != host:
        raise ProblemError(403, "foreign-origin", f"pages of {origin[:100]!r} may not call this service")
    needed = role_needed(scope["method"], scope["path"])
    if tokens is None or needed is None:
        return
    kind, _, given = headers.get("authorization", "").partition(" ")
    content = given.strip().encode("latin-1")
    roles = [role for token, role in tokens.items() if secrets.compare_digest(content, token)]
    if kind.lower() != "bearer" or not roles:
        detail = "no valid token: send `Authorization: Bearer TOKEN`"
        raise ProblemError(401, "unauthorized", detail, {"WWW-Authenticate": "Bearer"})
    scope["state"].update(role=roles[0], token=sha256(content).hexdigest()[:8])
    if ROLES.index(roles[0]) < ROLES.index(needed):
        detail = f"the token has the role {roles[0]}, but this needs {needed}: use a token with that role"
        raise ProblemError(403, "role", detail, needed=needed)


def role_needed(method: str, path: str) -> Role | None:
    """The role that a token needs for a request; None where no token is needed."""
    if method in ("GET", "HEAD"):
        return None if path == "/" or path.startswith("/v2/health/") else "read"
    return "score" if path.endswith(("/score", "/explain", "/infer")) else "admin"


async def read_items(request: Request, settings: ServeSettings, name: str | None) -> list[Item]:
    """The images of a request, not decoded yet: the files of a form, or the body itself."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            if kind == "multipart/form-data":
                return await read_form(request, settings.max_files)
            if kind in RAW_TYPES or kind.startswith("image/"):
                return [Item(clean_name(name), await request.body())]
    except TimeoutError:
        raise ProblemError(408, "too-slow", f"the body took more than {UPLOAD_SECONDS} seconds: send less") from None
    remedy = "send multipart/form-data with `files`, or an image as the body (image/* or application/octet-stream)"
    raise ProblemError(415, "unsupported-type", f"{kind[:100]} is not supported: {remedy}")


async def whole(stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The same chunks of a form; Starlette would ignore the last file of a form that is cut short."""
    end = b""
    async for chunk in stream:
        end = (end + chunk)[-80:]
        yield chunk
    if not re.search(rb"--[^\r\n]+--\s*$", end):
        raise MultiPartException("Its end is missing.")


async def read_form(request: Request, max_files: int) -> list[Item]:
    """The files of a form. Starlette keeps files of more than 1 MB in temporary files until they are read."""
    try:
        stream = whole(request.stream())
        form = await MultiPartParser(request.headers, stream, max_files=max_files, max_fields=0).parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise too_large("too many files", max_files) from None
        raise invalid(f"the form cannot be read ({error.message}): send images as files in `files`") from None
    try:
        files = [file for _, file in form.multi_items() if isinstance(file, UploadFile)]
        if not files:
            raise invalid("the form has no files: send images as files in `files`")
        return [Item(clean_name(file.filename), await file.read()) for file in files]
    finally:
        await form.close()


OutputName = Literal["score", "p_value", "is_ood", "error"]
NAMES = "names"
OUTPUTS: dict[OutputName, str] = {"score": "FP64", "p_value": "FP64", "is_ood": "BOOL", "error": "BYTES"}


class RequestedOutput(BaseModel):
    """An output of an inference."""

    name: OutputName


class InputTensor(BaseModel):
    """Images: files in base64. In an input `names`, their names."""

    name: str
    datatype: Literal["BYTES"]
    shape: list[int]
    data: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        if self.shape not in ([len(self.data)], [len(self.data), 1]):
            raise ValueError(f"the shape is {self.shape}, but data has {len(self.data)} values")
        return self


class Parameters(BaseModel):
    """`count` says whether monitor, history and metrics count the images. Others are ignored."""

    count: bool = True


class InferenceRequest(BaseModel):
    """Images, `names` if they have any, and the outputs. Without `outputs`, the response has all of them."""

    id: str | None = Field(None, max_length=200)
    inputs: list[InputTensor] = Field(min_length=1, max_length=2)
    outputs: list[RequestedOutput] | None = None
    parameters: Parameters = Parameters()


def inference_items(asked: InferenceRequest, max_files: int) -> list[Item]:
    """The images of an inference request, not decoded yet."""
    tensors = [each.data for each in asked.inputs if each.name != NAMES]
    if len(tensors) != 1:
        raise invalid(f"{len(tensors)} inputs of images: send one, and their names in an input called {NAMES}")
    contents = tensors[0]
    if len(contents) > max_files:
        raise too_large(f"{len(contents):,} images", max_files)
    names = next((each.data for each in asked.inputs if each.name == NAMES), [""] * len(contents))
    if len(names) != len(contents):
        raise invalid(f"{len(names)} names for {len(contents)} images: send one name for each image")
    try:
        decoded = [base64.decodebytes(each.encode()) for each in contents]
    except ValueError:
        raise invalid("an image is not in base64: send files in base64") from None
    return [Item(clean_name(name), content) for name, content in zip(names, decoded, strict=True)]


def clean_name(given: str | None) -> str:
    """The name of a file in one line, of a long name the end; or a unique one, which no rule of groups shortens."""
    return escaped((given or "").strip())[-LONGEST_NAME:] or f"{secrets.token_hex(8)}/image"
