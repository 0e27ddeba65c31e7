"""The application: what each address answers."""

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from PIL import Image
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

import discopatch
from discopatch.explain.heatmap import colour_layer, overlay
from discopatch.results import Explanation
from discopatch.serve import schemas
from discopatch.serve.auth import Access
from discopatch.serve.batching import Scored
from discopatch.serve.events import LONGEST_QUEUE, Event, Listener
from discopatch.serve.inference import INPUTS, OUTPUTS, InferenceRequest, answer, parse_request
from discopatch.serve.layers import Outermost
from discopatch.serve.limits import read_body, read_items
from discopatch.serve.page import CONTENT_SECURITY_POLICY, page_html
from discopatch.serve.problems import HANDLERS, ProblemError
from discopatch.serve.recording import alarm_dict, entry_of, prediction_dict
from discopatch.serve.schemas import problems
from discopatch.serve.service import Log, Service, no_log
from discopatch.serve.settings import ServeSettings

PNG, JSON = "image/png", "application/json"
MOST_RECENT = 500  # entries of one answer
BINARY = {"type": "string", "format": "binary"}
IMAGE_BODY = {
    "requestBody": {
        "required": True,
        "description": "Image files in the field `files` of a form, or one image as the body itself.",
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "additionalProperties": False,
                    "properties": {"files": {"type": "array", "minItems": 1, "items": BINARY}},
                }
            },
            "application/octet-stream": {"schema": BINARY},
            "image/*": {"schema": BINARY},
        },
    }
}
JSON_BODY = {
    "requestBody": {
        "required": True,
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/InferenceRequest"}}},
    }
}
UPLOAD_PROBLEMS = (404, 408, 413, 415, 429, 503)


async def service_of(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


Running = Annotated[Service, Depends(service_of)]
ImageName = Annotated[
    str | None, Query(max_length=1000, description="Of an image that is the body itself; only given back.")
]
v1, v2, other = APIRouter(prefix="/v1"), APIRouter(prefix="/v2"), APIRouter()


@v1.post(
    "/detectors/{name}/score",
    response_model=schemas.Scores,
    responses=problems(*UPLOAD_PROBLEMS),
    openapi_extra=IMAGE_BODY,
    summary="Score images",
)
async def score(
    request: Request, name: str, service: Running, image_name: Annotated[ImageName, Query(alias="name")] = None
) -> Response:
    """The score, p-value and decision of every image, in their order; an image that cannot be used has an error."""
    loaded = service.registry[name]
    with service.held() as held:
        items = await read_items(request, service.settings, loaded.predictor.limits, held)
        found: list[Scored] = await service.results(request, loaded, items)
    predictions = [each.prediction for each in found]
    request.state.noted = {
        "detector": name,
        "images": len(predictions),
        "flagged": sum(bool(each.is_ood) for each in predictions),
        "refused": sum(each.error is not None for each in predictions),
    }
    statuses = [each.status for each in found if each.status is not None]
    latest = max(statuses, key=lambda each: each.images + each.refused, default=None)
    return JSONResponse(
        {
            "detector": name,
            "predictions": [prediction_dict(each) for each in predictions],
            "monitor": None if latest is None else latest.as_dict(),
        }
    )


@v1.post(
    "/detectors/{name}/explain",
    response_model=schemas.Explained,
    responses={
        **problems(*UPLOAD_PROBLEMS),
        200: {
            "description": "JSON, or by `Accept: image/png` the overlay itself.",
            "content": {PNG: {"schema": BINARY}},
        },
    },
    openapi_extra=IMAGE_BODY,
    summary="Explain one image",
)
async def explain(
    request: Request,
    name: str,
    service: Running,
    image_name: Annotated[ImageName, Query(alias="name")] = None,
    accept: Annotated[str, Header(max_length=1000)] = "",
) -> Response:
    """Where and how one image differs from normal ones; it counts neither for the monitor nor in the history."""
    loaded = service.registry[name]
    with service.held() as held:
        items = await read_items(request, service.settings, loaded.predictor.limits, held)
        if len(items) > 1:
            raise ProblemError(422, "one-image", f"{len(items)} images, where one is explained: send them one by one")
        (found,) = await service.results(request, loaded, items, explain=True)
    request.state.noted = {"detector": name, "images": 1}
    if prefers_png(accept):
        return Response(await asyncio.to_thread(png_of, overlay(found.image, found.anomaly_map)), media_type=PNG)
    return JSONResponse({"detector": name, **await asyncio.to_thread(explanation_dict, found)})


@v1.get("/detectors", response_model=schemas.Detectors, responses=problems(), summary="List the detectors")
async def detectors(service: Running) -> Response:
    return JSONResponse({"detectors": [each.short for each in service.registry.all]})


@v1.get(
    "/detectors/{name}", response_model=schemas.DetectorFull, responses=problems(404), summary="Describe a detector"
)
async def detector(name: str, service: Running) -> Response:
    """Settings, guarantee, threshold, digests, and what a request may hold."""
    settings = service.settings
    limits = {
        each: getattr(settings, each)
        for each in ("max_pixels", "max_bytes", "max_request_bytes", "max_json_bytes", "max_files", "max_queue")
    }
    return JSONResponse({**service.registry[name].full, "limits": limits})


@v1.get(
    "/detectors/{name}/monitor",
    response_model=schemas.MonitorWithAlarms,
    responses=problems(404),
    summary="What the monitor says",
)
async def monitor(name: str, service: Running) -> Response:
    """Whether the stream of images as a whole has changed, and the last alarms."""
    status = service.registry[name].stream.status.as_dict()
    found = await asyncio.to_thread(service.recorder.history.alarms, name)
    alarms = [alarm_dict(each.id, each.time, each.status) for each in found]
    return JSONResponse({**status, "alarms": alarms})


@v1.post(
    "/detectors/{name}/monitor/restart",
    response_model=schemas.MonitorStatus,
    responses=problems(404),
    summary="Begin a new stream",
)
async def restart(name: str, service: Running) -> Response:
    """The monitor's evidence begins anew; alarms that were raised stay in the history."""
    stream = service.registry[name].stream
    status = (await asyncio.to_thread(stream.restart)).as_dict()
    service.log("info", "monitor", detector=name, detail="a new stream begins")
    service.hub.publish(name, [Event("monitor", status)])
    return JSONResponse(status)


@v1.get(
    "/detectors/{name}/recent", response_model=schemas.Recent, responses=problems(404), summary="The last predictions"
)
async def recent(
    name: str,
    service: Running,
    limit: Annotated[int, Query(ge=1, le=MOST_RECENT)] = 50,
    before: Annotated[schemas.Number | None, Query(description="Only entries with a smaller number.")] = None,
) -> Response:
    """Newest first; of more than `limit` the next are `before` the last number."""
    history = service.recorder.history
    known = service.registry[name].name
    entries = await asyncio.to_thread(history.recent, known, limit, before)
    counts = await asyncio.to_thread(history.counts, known)
    return JSONResponse({"entries": [entry_of(each) for each in entries], **counts._asdict()})


@v1.get(
    "/detectors/{name}/recent/{number}/thumbnail",
    response_class=Response,
    responses={**problems(404), 200: {"content": {"image/jpeg": {"schema": BINARY}}}},
    summary="A small image of an entry",
)
async def thumbnail(name: str, number: schemas.Number, service: Running) -> Response:
    known = service.registry[name].name
    history = service.recorder.history
    entries = await asyncio.to_thread(history.recent, known, 1, number + 1 if number < 2**63 - 1 else None)
    found = await asyncio.to_thread(history.thumbnail, number) if entries and entries[0].id == number else None
    if found is None:
        raise ProblemError(404, "no-such-entry", f"detector {name} has no thumbnail {number}")
    return Response(found, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=86400, immutable"})


@v1.get(
    "/detectors/{name}/events",
    response_class=StreamingResponse,
    responses={**problems(404, 429), 200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    summary="Server-sent events",
)
async def events(
    name: str,
    service: Running,
    last_event_id: Annotated[
        str, Header(max_length=30, description="The number of the last entry that was seen.")
    ] = "",
) -> Response:
    """`prediction`, `monitor` and `alarm`, as they happen; a reader who is too slow is dropped, and may come back."""
    known = service.registry[name].name
    if len(service.hub.listeners) >= service.settings.max_listeners:
        detail = f"{service.settings.max_listeners} readers of events are the most: try again later"
        raise ProblemError(429, "too-many-listeners", detail, headers={"Retry-After": "10"})
    listener = service.hub.listen(known)
    return StreamingResponse(
        event_stream(service, listener, last_event_id),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def event_stream(service: Service, listener: Listener, last_seen: str) -> AsyncIterator[bytes]:
    try:
        missed = []
        if last_seen.isdecimal() and int(last_seen) < 2**63:
            history = service.recorder.history
            found = await asyncio.to_thread(history.following, listener.detector, int(last_seen), LONGEST_QUEUE)
            missed = [Event("prediction", entry_of(each), each.id) for each in found]
        async for part in listener.stream(missed):
            yield part
    finally:
        service.hub.listeners.discard(listener)


@v1.post("/reload", response_model=schemas.Reloaded, responses=problems(409), summary="Load all detectors anew")
async def reload(service: Running) -> Response:
    """All at once, or none where one is bad; requests that have begun end with the old ones."""
    changed = await service.reload()
    return JSONResponse({"detectors": [each.name for each in service.registry.all], "changed": changed})


@v2.get("", response_model=schemas.ServerMetadata, responses=problems(), summary="The service")
async def server() -> Response:
    return JSONResponse({"name": "discopatch", "version": discopatch.__version__, "extensions": []})


@v2.get("/health/live", response_model=schemas.Health, responses=problems(), summary="Whether the service lives")
async def live() -> Response:
    return JSONResponse({"live": True})


@v2.get("/health/ready", response_model=schemas.Ready, responses=problems(503), summary="Whether it takes images")
async def ready(service: Running) -> Response:
    if service.is_stopping:
        raise ProblemError(503, "stopping", "the service is stopping", headers={"Retry-After": "5"}, ready=False)
    return JSONResponse({"ready": True, "history": service.recorder.error})


@v2.get("/models/{name}", response_model=schemas.ModelMetadata, responses=problems(404), summary="Describe a model")
async def model(name: str, service: Running) -> Response:
    loaded = service.registry[name]
    found = {
        "name": name,
        "versions": [loaded.digest[:12]],
        "platform": "discopatch",
        "inputs": INPUTS,
        "outputs": OUTPUTS,
    }
    return JSONResponse(found)


@v2.get(
    "/models/{name}/ready",
    response_model=schemas.ModelReady,
    responses=problems(404, 503),
    summary="Whether a model takes images",
)
async def model_ready(name: str, service: Running) -> Response:
    known = service.registry[name].name
    if service.is_stopping:
        raise ProblemError(503, "stopping", "the service is stopping", headers={"Retry-After": "5"}, ready=False)
    return JSONResponse({"name": known, "ready": True})


@v2.post(
    "/models/{name}/infer",
    response_model=schemas.InferenceAnswer,
    responses=problems(*UPLOAD_PROBLEMS),
    openapi_extra=JSON_BODY,
    summary="Score images by the Open Inference Protocol",
)
async def infer(request: Request, name: str, service: Running) -> Response:
    """One input of images: encoded, as base64 (BYTES), or pixels (UINT8); the binary extension is not taken."""
    loaded = service.registry[name]
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind != JSON or "inference-header-content-length" in request.headers:
        raise ProblemError(415, "unsupported-type", f"send {JSON}, without binary data")
    with service.held() as held:
        body = await read_body(request, service.settings.max_json_bytes, service.settings, held)
        parse = partial(parse_request, body, max_files=service.settings.max_files)
        asked, items = await asyncio.get_running_loop().run_in_executor(request.app.state.parser, parse)
        del body
        found: list[Scored] = await service.results(request, loaded, items)
    request.state.noted = {"detector": name, "images": len(items)}
    return JSONResponse(answer(name, loaded.digest[:12], asked, [each.prediction for each in found]))


@other.get(
    "/metrics",
    response_class=Response,
    responses={**problems(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    summary="For Prometheus",
)
async def metrics(service: Running) -> Response:
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@other.get("/", response_class=HTMLResponse, responses=problems(), summary="The page")
async def page() -> Response:
    headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "X-Frame-Options": "DENY"}
    return HTMLResponse(page_html(), headers={**headers, "Cache-Control": "no-cache"})


def prefers_png(accept: str) -> bool:
    """Whether the header names PNG and likes it better than JSON."""
    likes: dict[str, float] = {}
    for each in accept.lower().split(","):
        kind, *options = (part.strip() for part in each.split(";"))
        quality = next((option[2:] for option in options if option.startswith("q=")), "1")
        try:
            likes[kind] = float(quality)
        except ValueError:
            likes[kind] = 0.0
    return likes.get(PNG, 0.0) > likes.get(JSON, 0.0)


def explanation_dict(found: Explanation) -> dict[str, Any]:
    prediction = found.prediction
    size = (found.image.shape[1], found.image.shape[0])
    numbers = np.ascontiguousarray(found.anomaly_map, dtype="<f4")
    return {
        "name": prediction.name,
        "score": prediction.score,
        "p_value": prediction.p_value,
        "is_ood": prediction.is_ood,
        "z_scores": {each.name: each.z for each in prediction.components},
        "significant": [each.name for each in prediction.significant],
        "components": [each._asdict() for each in found.components],
        "reasons": [each._asdict() for each in found.reasons],
        "image": data_url(Image.fromarray(found.image)),
        "heatmap": data_url(colour_layer(found.anomaly_map, size=size)),
        "overlay": data_url(overlay(found.image, found.anomaly_map)),
        "anomaly_map": {
            "shape": list(numbers.shape),
            "datatype": "FP32",
            "data": base64.b64encode(numbers.tobytes()).decode(),
        },
    }


def data_url(image: Image.Image) -> str:
    return f"data:{PNG};base64,{base64.b64encode(png_of(image)).decode()}"


def png_of(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def create_app(settings: ServeSettings, *, log: Log = no_log) -> FastAPI:
    """The application with its detectors loaded, ready to be run by any ASGI server; errors are DiscopatchErrors."""
    service = Service(settings, log)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.open()
        try:
            yield
        finally:
            await asyncio.to_thread(service.close)

    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "X-API-Key", "X-Request-ID", "Content-Type", "Last-Event-ID"],
        expose_headers=["X-Request-ID", "Retry-After"],
    )
    layers = [Middleware(Outermost), *([cors] if settings.cors else []), Middleware(Access, settings=settings)]
    app = FastAPI(
        title="discopatch",
        version=discopatch.__version__,
        description="Tells whether an image is like the images you trust, how sure that is, and where it differs.",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        middleware=layers,
        exception_handlers=HANDLERS,
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.parser = ThreadPoolExecutor(1, thread_name_prefix="discopatch-json")  # one: JSON takes much memory
    for router in (v1, v2, other):
        app.include_router(router)
    add_schemas(app, has_tokens=settings.token_file is not None)
    return app


def add_schemas(app: FastAPI, *, has_tokens: bool) -> None:
    """Puts what the routes only refer to into the OpenAPI document: problems, the body of an inference, tokens."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            parts = document.setdefault("components", {}).setdefault("schemas", {})
            for kind in (schemas.Problem, InferenceRequest):
                own = kind.model_json_schema(ref_template="#/components/schemas/{model}")
                parts.update(own.pop("$defs", {}))
                parts[kind.__name__] = own
            if has_tokens:
                document["components"]["securitySchemes"] = {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                }
                document["security"] = [{"bearer": []}, {"key": []}]
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
