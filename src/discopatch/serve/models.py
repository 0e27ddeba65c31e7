"""Bodies of requests and responses."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

PROBLEM_TYPE = "urn:discopatch:problem:"
Number = Annotated[int, Field(ge=1, le=2**63 - 1)]


class Open(BaseModel):
    """A body that may have further fields."""

    model_config = ConfigDict(extra="allow")


class Problem(Open):
    """Problem details (RFC 9457)."""

    type: str = Field(description=f"{PROBLEM_TYPE} and the kind of problem, such as queue-full")
    title: str
    status: int
    detail: str = Field(description="What is wrong and what to do about it")
    instance: str
    request_id: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {"application/problem+json": {"schema": Problem.model_json_schema()}},
    }
    for status, description in (
        ("4XX", "The request cannot be answered; `detail` names the remedy."),
        ("5XX", "The service is busy, stopping or failed; with `Retry-After`, try again later."),
    )
}


class Row(Open):
    """A prediction, with the columns of every output of discopatch.

    Detectors with components also have the z-score of each, `z_NAME`, and `significant`, their names joined by commas.
    """

    name: str
    score: float | None = Field(description="Higher means more out-of-distribution")
    p_value: float | None = Field(description="Share of normal images with at least this score, counting this one")
    is_ood: bool | None = Field(description="Null where the image has no score")
    error: str | None = Field(description="Why the image was refused")


class MonitorStatus(Open):
    """The state of the monitor after its last image."""

    images: int
    refused: int
    log10_evidence: float | None
    threshold: float
    alarm: bool
    alarm_at: int | None
    text: str


class MonitorWithAlarms(MonitorStatus):
    """The status of the monitor and its statuses at the last alarms, newest first, with `id` and `time`."""

    alarms: list[MonitorStatus]


class Scores(BaseModel):
    """The predictions of one request, in the order of its images."""

    detector: str
    predictions: list[Row]
    monitor: MonitorStatus


class Finding(Open):
    """A known change that the image resembles, or a component that is significant."""

    z: float
    text: str


class Explained(Row):
    """A prediction, and where and how the image differs from normal images."""

    detector: str
    components: list[Finding] = Field(description="Significant components, strongest first")
    reasons: list[Finding] = Field(description="Strongest first; an export has none")
    image: str = Field(description="The image as the model receives it: a PNG as a data URL")
    heatmap: str = Field(description="The heatmap alone, transparent where nothing is unusual")
    anomaly_map: dict[str, Any] = Field(description="`shape`, and `data`: base64 of little-endian FP32 values")


class Entry(Row):
    """A prediction in the history."""

    id: int
    time: str
    thumbnail: str | None = Field(description="Path of a small image")
    evidence: float | None = Field(description="Evidence of a change after this image (log10)")


class Recent(BaseModel):
    """The last predictions, newest first."""

    entries: list[Entry]
    images: int = Field(description="In total, including those no longer kept")
    flagged: int
    refused: int


OutputName = Literal["score", "p_value", "is_ood", "error"]
OUTPUTS: dict[OutputName, str] = {"score": "FP64", "p_value": "FP64", "is_ood": "BOOL", "error": "BYTES"}


class RequestedOutput(BaseModel):
    """An output of an inference."""

    name: OutputName


class InputTensor(BaseModel):
    """Images: files in base64."""

    name: str
    datatype: Literal["BYTES"]
    shape: list[int]
    data: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        if self.shape not in ([len(self.data)], [len(self.data), 1]):
            raise ValueError(f"the shape is {self.shape}, but data has {len(self.data)} values")
        return self


class InferenceRequest(BaseModel):
    """One input, and the requested outputs. Without `outputs`, the response has all of them."""

    id: str | None = Field(None, max_length=200)
    inputs: list[InputTensor] = Field(min_length=1, max_length=1)
    outputs: list[RequestedOutput] | None = None
