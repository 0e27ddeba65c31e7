"""Every HTTP error as RFC 9457 problem details."""

from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

TYPE = "urn:discopatch:problem:"
MEDIA_TYPE = "application/problem+json"
CLIENT_GONE = 499  # of the log alone: nobody is left to answer
MOST_FAULTS = 20  # of a request that are listed


class ProblemError(Exception):
    """An answer that is an error; `kind` is the last part of its type, such as queue-full."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.headers, self.more = dict(headers or {}), more


class ProblemResponse(JSONResponse):
    """Problem details as they are sent."""

    media_type = MEDIA_TYPE


def problem_response(scope: Mapping[str, Any], problem: ProblemError) -> ProblemResponse:
    """For the service's own addresses below /v2 also with `error`, the field that their protocol has."""
    path = str(scope.get("path", ""))
    content: dict[str, Any] = {
        "type": TYPE + problem.kind if problem.kind else "about:blank",
        "title": title_of(problem.status),
        "status": problem.status,
        "detail": problem.detail,
        "instance": path.encode("utf-8", "replace").decode(),
        "request_id": request_id_of(scope),
        **problem.more,
    }
    if path.startswith("/v2"):
        content["error"] = problem.detail
    return ProblemResponse(content, problem.status, headers=problem.headers)


def title_of(status: int) -> str:
    return "Client Closed Request" if status == CLIENT_GONE else HTTPStatus(status).phrase


def request_id_of(scope: Mapping[str, Any]) -> str:
    return str(scope.get("state", {}).get("request_id", ""))


async def answer_problem(request: Request, error: Exception) -> ProblemResponse:
    """The handler of ProblemError."""
    assert isinstance(error, ProblemError)
    return problem_response(request.scope, error)


async def answer_http_error(request: Request, error: Exception) -> ProblemResponse:
    """The handler of what the framework raises itself: no such address, or another method."""
    assert isinstance(error, HTTPException)
    details = {
        404: f"nothing is at {request.url.path}: /openapi.json lists all addresses",
        405: f"{request.method} is not possible here: see Allow",
    }
    detail = details.get(error.status_code, str(error.detail))
    kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "")
    return problem_response(request.scope, ProblemError(error.status_code, kind, detail, headers=error.headers))


async def answer_invalid(request: Request, error: Exception) -> ProblemResponse:
    """The handler of parameters that do not fit."""
    assert isinstance(error, RequestValidationError)
    faults = [{"at": ".".join(map(str, each["loc"]))[:200], "fault": str(each["msg"])[:500]} for each in error.errors()]
    first = faults[0] if faults else {"at": "request", "fault": "not valid"}
    problem = ProblemError(422, "invalid", f"{first['at']}: {first['fault']}", faults=faults[:MOST_FAULTS])
    return problem_response(request.scope, problem)


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    ProblemError: answer_problem,
    HTTPException: answer_http_error,
    RequestValidationError: answer_invalid,
}
