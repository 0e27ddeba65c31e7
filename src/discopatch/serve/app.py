"""The routes of the service."""

import asyncio
import base64
import io
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from fastapi.sse import EventSourceResponse, ServerSentEvent
from PIL import Image
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

import discopatch
from discopatch import history
from discopatch.errors import StoreError
from discopatch.explain.heatmap import colour_layer, overlay
from discopatch.results import Explanation, as_row
from discopatch.serve import limits
from discopatch.serve.limits import Border, ProblemError, inference_items, invalid, read_items
from discopatch.serve.metrics import log_event
from discopatch.serve.page import CONTENT_SECURITY_POLICY, PAGE
from discopatch.serve.service import Loaded, Service
from discopatch.serve.settings import ServeSettings

PNG = "image/png"
MOST_RECENT = 500  # entries of one response
EVENTS_AT_ONCE = 256  # read from the history
EVENT_SECONDS = 0.2  # between two looks for new events
BINARY = {"type": "string", "format": "binary"}
FORM = {"type": "object", "required": ["files"], "properties": {"files": {"type": "array", "items": BINARY}}}
IMAGE_BODY = {
    "requestBody": {
        "required": True,
        "description": "Image files in the field `files` of a form, or one image as the body itself.",
        "content": {"multipart/form-data": {"schema": FORM}, "image/*": {"schema": BINARY}},
    }
}
OVERLAY: dict[int | str, dict[str, Any]] = {200: {"content": {PNG: {"schema": BINARY}}}}
LIMITS = ("max_pixels", "max_bytes", "max_request_bytes", "max_json_bytes", "max_files", "max_queue", "client_rate")


async def service_of(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


Running = Annotated[Service, Depends(service_of)]


async def loaded_of(service: Running, name: str) -> Loaded:
    return service.find(name)


async def check_room(request: Request, service: Running) -> None:
    """Raises an error before the body is received where its images could not be scored now."""
    service.queue.check_room()
    service.rates.take(request.scope["state"], 0)


ROOM = [Depends(check_room)]
Chosen = Annotated[Loaded, Depends(loaded_of)]
ImageName = Annotated[
    str | None, Query(alias="name", max_length=1000, description="Name of an image that is the body itself.")
]
IdempotencyKey = Annotated[
    str | None, Header(max_length=255, description="A repeated request gets the first answer and counts once.")
]
v1, v2, other = APIRouter(prefix="/v1"), APIRouter(prefix="/v2"), APIRouter()


@v1.post("/detectors/{name}/score", dependencies=ROOM, openapi_extra=IMAGE_BODY)
async def score(
    request: Request,
    loaded: Chosen,
    service: Running,
    image: ImageName = None,
    count: Annotated[bool, Query(description="Whether monitor, history and metrics count the images.")] = True,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """The row of every image, in order, with the columns of every output of discopatch; and the state of the monitor.

    A refused image has an error, and null for the score, the p-value and `is_ood`.
    """
    items = await read_items(request, service.settings, image)
    found = await service.predictions(request, loaded, items, count=count, key=idempotency_key)
    rows = [as_row(each, loaded.detector.column_names) for each in found]
    return {"detector": loaded.name, "predictions": rows, "monitor": loaded.stream.monitor.status.as_dict()}


@v1.post(
    "/detectors/{name}/explain",
    dependencies=ROOM,
    response_model=dict[str, Any],
    responses=OVERLAY,
    openapi_extra=IMAGE_BODY,
)
async def explain(
    request: Request,
    loaded: Chosen,
    service: Running,
    image: ImageName = None,
    accept: Annotated[str, Header(max_length=1000)] = "",
) -> Response | dict[str, Any]:
    """Where and how one image differs from normal images, or with `Accept: image/png` an overlay.

    Beside the row of the prediction: components and reasons, strongest first; unusual regions with boxes and contours
    in pixels of the image that was sent; the image as the model receives it and the heatmap, as data URLs; and the
    anomaly map, in base64 of little-endian FP32 values. Monitor and history do not count the image.
    """
    items = await read_items(request, service.settings, image)
    if len(items) > 1:
        raise invalid(f"{len(items)} images: send one image per request")
    found: Explanation
    (found,) = await service.results(request, loaded, items, explain=True)
    if PNG in accept and "json" not in accept:
        return Response(await asyncio.to_thread(png_of, overlay(found.image, found.anomaly_map)), media_type=PNG)
    values, size = found.anomaly_map.astype("<f4"), (found.image.shape[1], found.image.shape[0])
    pictures = Image.fromarray(found.image), colour_layer(found.anomaly_map, size=size)
    image_url, heatmap_url = await asyncio.to_thread(lambda: [data_url(each) for each in pictures])
    return {
        "detector": loaded.name,
        **await asyncio.to_thread(found.as_dict, loaded.detector.column_names),
        "image": image_url,
        "heatmap": heatmap_url,
        "anomaly_map": {"shape": values.shape, "datatype": "FP32", "data": base64.b64encode(values.tobytes()).decode()},
    }


@v1.get("/detectors")
async def detectors(request: Request, service: Running) -> dict[str, Any]:
    """All detectors, each as below its own address; and the role of the caller: read, score or admin."""
    found = [details_of(each, service.settings) for each in service.loaded.values()]
    return {"detectors": found, "role": getattr(request.state, "role", "admin")}


@v1.get("/detectors/{name}")
async def detector(loaded: Chosen, service: Running) -> dict[str, Any]:
    """Settings, guarantee, threshold, and the limits of a request."""
    return details_of(loaded, service.settings)


@v1.post("/detectors/{name}/accept", dependencies=ROOM, openapi_extra=IMAGE_BODY)
async def accept(request: Request, loaded: Chosen, service: Running, image: ImageName = None) -> dict[str, Any]:
    """Makes the images normal for the detector, in its file and in this service; images like them are not flagged.

    No score rises and the calibration stays. The rows are those after it. Another service reloads to take it over.
    """
    items = service.bounded(await read_items(request, service.settings, image))
    changed = await service.change(loaded, lambda detector: detector.accept(items))
    found = await service.results(request, changed, items)
    rows = [as_row(each.prediction, changed.detector.column_names) for each, _ in found]
    return {"detector": changed.name, "predictions": rows, "accepted": changed.detector.settings()["accepted"]}


@v1.delete("/detectors/{name}/accepted/{digest}")
async def take_back(loaded: Chosen, service: Running, digest: limits.ImageDigest) -> dict[str, Any]:
    """Makes an accepted image not normal again, by its digest in the settings of the detector."""
    changed = await service.change(loaded, lambda detector: detector.take_back(digest))
    return {"detector": changed.name, "accepted": changed.detector.settings()["accepted"]}


@v1.get("/detectors/{name}/monitor")
def monitor(loaded: Chosen, service: Running) -> dict[str, Any]:
    """Whether the stream of images has changed, and the last alarms."""
    alarms = [{**each, "time": time_text(each["time"])} for each in service.history.alarms(loaded.name)]
    return {**loaded.stream.monitor.status.as_dict(), "alarms": alarms}


@v1.post("/detectors/{name}/monitor/restart")
def restart(loaded: Chosen, service: Running) -> dict[str, Any]:
    """Resets the evidence of the monitor; past alarms stay in the history."""
    log_event(logging.INFO, "monitor", detector=loaded.name, detail="a new stream begins")
    return service.restart(loaded).as_dict()


@v1.get("/detectors/{name}/recent")
def recent(
    loaded: Chosen,
    service: Running,
    limit: Annotated[int, Query(ge=1, le=MOST_RECENT)] = 50,
    before: Annotated[limits.Number | None, Query(description="Only entries with a smaller id.")] = None,
) -> dict[str, Any]:
    """The last predictions, newest first, and the numbers of all. For the next page, pass the last id as `before`."""
    entries = service.history.recent(loaded.name, limit, before)
    return {"entries": [entry_of(loaded, each) for each in entries], **service.history.counts(loaded.name)._asdict()}


@v1.get("/detectors/{name}/recent/{number}/thumbnail", response_class=Response)
def thumbnail(loaded: Chosen, service: Running, number: limits.Number) -> Response:
    """A small JPEG of an entry."""
    found = service.history.thumbnail(number)
    if found is None:
        raise ProblemError(404, "no-such-entry", f"detector {loaded.name} has no thumbnail {number}")
    return Response(found, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=86400, immutable"})


@v1.get("/detectors/{name}/events", response_class=EventSourceResponse)
async def events(
    loaded: Chosen,
    service: Running,
    last_event_id: Annotated[limits.Number | None, Header(description="Id of the last entry that was seen.")] = None,
) -> AsyncIterator[ServerSentEvent]:
    """`prediction`, `monitor` and `alarm`. With Last-Event-ID, the missed predictions come first."""
    name, stream, version = loaded.name, loaded.stream, -1
    last, was_alarm = last_event_id, stream.monitor.status.alarm
    while not service.is_stopping:
        if stream.version == version:
            await asyncio.sleep(EVENT_SECONDS)
            continue
        seen = stream.version
        try:
            if last is None:
                newest = await asyncio.to_thread(service.history.recent, name, 1)
                last = newest[0].id if newest else 0
            entries = await asyncio.to_thread(service.history.following, name, last, EVENTS_AT_ONCE)
        except StoreError:  # the server of the history is away
            await asyncio.sleep(EVENT_SECONDS)
            continue
        for entry in entries:
            last = entry.id
            yield ServerSentEvent(event="prediction", id=str(last), data=entry_of(loaded, entry))
        if len(entries) < EVENTS_AT_ONCE:
            version, status = seen, stream.monitor.status
            yield ServerSentEvent(event="monitor", data=status.as_dict())
            if status.alarm and not was_alarm:
                yield ServerSentEvent(event="alarm", data=status.as_dict())
            was_alarm = status.alarm


@v1.post("/reload")
async def reload(service: Running) -> dict[str, list[str]]:
    """Replaces all detectors at once, or none where one is bad; requests that have begun keep the old ones."""
    return {"changed": await service.reload(), "detectors": list(service.loaded)}


@v2.get("")
async def server() -> dict[str, Any]:
    return {"name": "discopatch", "version": discopatch.__version__, "extensions": []}


@v2.get("/health/live")
async def live() -> dict[str, bool]:
    return {"live": True}


@v2.get("/health/ready")
async def ready(service: Running) -> dict[str, bool]:
    """503 while the service stops, and while the history cannot be written."""
    service.check_ready()
    return {"ready": True}


@v2.get("/models/{name}")
async def model(loaded: Chosen) -> dict[str, Any]:
    return {
        "name": loaded.name,
        "versions": [loaded.detector.digest_],
        "platform": "discopatch",
        "inputs": [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in ("images", limits.NAMES)],
        "outputs": [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in limits.OUTPUTS.items()],
    }


@v2.get("/models/{name}/ready")
async def model_ready(loaded: Chosen, service: Running) -> dict[str, Any]:
    service.check_ready()
    return {"name": loaded.name, "ready": True}


@v2.post("/models/{name}/infer", dependencies=ROOM)
async def infer(
    request: Request,
    asked: limits.InferenceRequest,
    loaded: Chosen,
    service: Running,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Images in base64 (BYTES), and their names in an input `names`. The binary extension is not supported.

    Clients read null as false. A request with an image that cannot be read is therefore refused, unless `outputs`
    names `error`.
    """
    items = inference_items(asked, service.settings.max_files)
    wanted = {each.name for each in asked.outputs or ()}
    whole = "error" not in wanted
    found = await service.predictions(
        request, loaded, items, count=asked.parameters.count, key=idempotency_key, whole=whole
    )
    for number, each in enumerate(found):
        if whole and each.error is not None:
            detail = f"image {number} ({each.name}): {each.error}; with `error` in `outputs` the others are answered"
            raise ProblemError(422, "image-refused", detail)
    outputs = [
        {"name": name, "datatype": kind, "shape": [len(found)], "data": [getattr(each, name) for each in found]}
        for name, kind in limits.OUTPUTS.items()
        if not wanted or name in wanted
    ]
    return {"model_name": loaded.name, "model_version": loaded.detector.digest_, "id": asked.id, "outputs": outputs}


@other.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Running) -> Response:
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@other.get("/", response_class=HTMLResponse)
async def page() -> Response:
    headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "X-Frame-Options": "DENY"}
    return HTMLResponse(PAGE, headers={**headers, "Cache-Control": "no-cache"})


def details_of(loaded: Loaded, settings: ServeSettings) -> dict[str, Any]:
    detector = loaded.detector
    return {
        "name": loaded.name,
        "kind": "export" if loaded.is_export else "detector",
        "digest": detector.digest_,  # of everything that a score depends on
        "loaded": time_text(loaded.since),
        "false_alarm_rate": detector.false_alarm_rate_,
        "guarantee": detector.guarantee_.text,
        "n_calibration": len(detector.calibration_scores_),
        "threshold": detector.threshold_ if isfinite(detector.threshold_) else None,  # null: no image can be flagged
        "spread": float(np.ptp(detector.calibration_scores_)),
        "component_names": list(detector.component_names),
        "settings": detector.settings(),
        "limits": {name: getattr(settings, name) for name in LIMITS},
    }


def entry_of(loaded: Loaded, entry: history.Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "time": time_text(entry.time),
        **as_row(entry.prediction, loaded.detector.column_names),
        "thumbnail": f"/v1/detectors/{loaded.name}/recent/{entry.id}/thumbnail" if entry.has_thumbnail else None,
        "evidence": entry.evidence,
    }


def time_text(seconds: float) -> str:
    """The time in ISO 8601 and UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def data_url(image: Image.Image) -> str:
    return f"data:{PNG};base64,{base64.b64encode(png_of(image)).decode()}"


def png_of(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def create_app(settings: ServeSettings) -> FastAPI:
    """The application with its detectors loaded, ready for any ASGI server."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.writer.start()
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="discopatch",
        version=discopatch.__version__,
        description="Out-of-distribution scores of images, with p-values, explanations and a monitor of the stream.",
        docs_url=None,  # these pages load scripts from other servers
        redoc_url=None,
        middleware=[Middleware(Border, service=service)],
        exception_handlers=dict.fromkeys((HTTPException, RequestValidationError, StoreError), limits.answer_error),
        responses=limits.PROBLEMS,
        dependencies=[] if settings.token_file is None else [Security(HTTPBearer(auto_error=False))],
        lifespan=lifespan,
    )
    app.state.service = service
    for router in (v1, v2, other):
        app.include_router(router)
    if settings.token_file is not None:
        describe_roles(app.openapi())
    return app


def describe_roles(description: dict[str, Any]) -> None:
    """Adds to each operation the role that a token needs for it."""
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            role = limits.role_needed(method.upper(), path)
            operation["security"] = [] if role is None else [{"HTTPBearer": [role]}]
