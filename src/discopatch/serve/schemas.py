"""The bodies of answers and requests, as the OpenAPI document describes them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from discopatch.serve.problems import MEDIA_TYPE

Number = Annotated[int, Field(ge=1, le=2**63 - 1)]


class Problem(BaseModel):
    """Problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="urn:discopatch:problem: and what went wrong, such as queue-full")
    title: str
    status: int
    detail: str = Field(description="What is wrong and what to do about it")
    instance: str
    request_id: str


class ScoredImage(BaseModel):
    """An image with its score."""

    model_config = ConfigDict(title="Prediction")

    name: str
    score: float = Field(description="Higher means more out-of-distribution")
    p_value: float = Field(description="Share of normal images with at least this score, counting this one")
    is_ood: bool
    components: dict[str, float] = Field(description="The z-score of each component, of a head that has some")
    significant: list[str] = Field(description="The components that stand out, strongest first")


class RefusedImage(BaseModel):
    """An image that was refused, and why."""

    name: str
    error: str


class ChangePoint(BaseModel):
    """Since which image the stream has changed, and between which two that is."""

    model_config = ConfigDict(extra="allow")

    image: int
    earliest: int
    latest: int


class MonitorStatus(BaseModel):
    """What the monitor says of the stream of images."""

    model_config = ConfigDict(extra="allow")

    images: int
    refused: int
    evidence: float
    log10_evidence: float
    threshold: float
    alarm: bool
    alarm_at: int | None
    since: ChangePoint | None
    direction: str | None
    component: str | None
    telling: list[dict[str, Any]]
    text: str


class Scores(BaseModel):
    """The predictions of one request, in the order of its files."""

    detector: str
    predictions: list[ScoredImage | RefusedImage]
    monitor: MonitorStatus | None


class Reason(BaseModel):
    """A known change that the image looks like."""

    id: str
    z: float
    text: str


class Component(BaseModel):
    """A component of the head that stands out."""

    name: str
    z: float
    text: str


class AnomalyMap(BaseModel):
    """The numbers behind the heatmap."""

    shape: list[int]
    datatype: Literal["FP32"] = "FP32"
    data: str = Field(description="Base64 of the values row by row, each in four bytes, the least first")


class Explained(BaseModel):
    """A prediction, and where and how the image differs from normal ones."""

    detector: str
    name: str
    score: float
    p_value: float
    is_ood: bool
    z_scores: dict[str, float] = Field(description="Of every component")
    significant: list[str]
    components: list[Component] = Field(description="Those that stand out, strongest first")
    reasons: list[Reason] = Field(description="Strongest first; an export has none")
    image: str = Field(description="The image as the model gets it: a PNG as a data URL")
    heatmap: str = Field(description="The heatmap alone, transparent where nothing is unusual")
    overlay: str = Field(description="The heatmap over the image")
    anomaly_map: AnomalyMap


class DetectorShort(BaseModel):
    """A detector in a list."""

    name: str
    kind: Literal["detector", "export"]
    digest: str
    loaded: str
    false_alarm_rate: float


class Detectors(BaseModel):
    """All detectors of the service."""

    detectors: list[DetectorShort]


class Guarantee(BaseModel):
    """The false-alarm rate, and how many images it rests on."""

    text: str
    rate: float
    n_calibration: int


class Histogram(BaseModel):
    """Of the calibration scores."""

    edges: list[float]
    counts: list[int]


class DetectorFull(DetectorShort):
    """A detector with all of its settings."""

    settings: dict[str, Any]
    guarantee: Guarantee
    threshold: float | None = Field(description="Scores above it are flagged; null where no image can be")
    transform: dict[str, Any]
    component_names: list[str]
    limits: dict[str, int]
    calibration: Histogram


class Alarm(MonitorStatus):
    """The monitor's status when it raised an alarm."""

    id: int | None
    time: str


class MonitorWithAlarms(MonitorStatus):
    """What the monitor says, and its last alarms, newest first."""

    alarms: list[Alarm]


class Entry(BaseModel):
    """A prediction of the history: the fields of a prediction, its number, time and thumbnail, and what came of it."""

    model_config = ConfigDict(extra="allow")

    id: int
    time: str
    name: str
    thumbnail: str | None
    evidence: float | None = Field(description="Of a change of the stream, after this image: its logarithm to base 10")


class Recent(BaseModel):
    """The last predictions, newest first."""

    entries: list[Entry]
    images: int = Field(description="In all, those that are no longer kept too")
    flagged: int
    refused: int


class Reloaded(BaseModel):
    """What a reload has changed."""

    detectors: list[str]
    changed: list[str]


class Health(BaseModel):
    """Whether the service lives."""

    live: bool = True


class Ready(BaseModel):
    """Whether the service takes images; `history` says why the history cannot be written, while that is so."""

    ready: bool
    history: str | None


class ModelReady(BaseModel):
    """Whether a model takes images."""

    name: str
    ready: bool


class ServerMetadata(BaseModel):
    """What the service is."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """An input or an output of a model; -1 stands for any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """A detector as the Open Inference Protocol describes a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class OutputTensor(BaseModel):
    """One output, a value an image; null where the image was refused."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]


class InferenceAnswer(BaseModel):
    """The outputs of an inference."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


PROBLEMS = {
    401: "No valid token.",
    403: "Another origin or host than the service is for.",
    404: "No such detector or entry.",
    408: "The body came too slowly.",
    409: "The service is busy with another reload.",
    413: "More bytes, files or pixels than a request may have.",
    415: "Another type of content.",
    422: "Not what is expected.",
    429: "The queue is full; Retry-After says when to come again.",
    500: "An error of the service itself.",
    503: "Not in time, or not ready; Retry-After says when to come again.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that an address may answer with, beside those that any may."""
    return {
        status: {"description": PROBLEMS[status], "content": {MEDIA_TYPE: {"schema": {"$ref": SCHEMA}}}}
        for status in sorted({*statuses, 401, 403, 422, 500})
    }


SCHEMA = "#/components/schemas/Problem"
