"""Bodies of requests and responses."""

from typing import Annotated, Any, Literal, Self

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, model_validator

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


CONTENT = {"application/problem+json": {"schema": Problem.model_json_schema()}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request cannot be answered; `detail` names the remedy.", "content": CONTENT},
    "5XX": {"description": "Busy, stopping or failed; with `Retry-After`, try again later.", "content": CONTENT},
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


class Scores(BaseModel):
    """The predictions of one request, in the order of its images."""

    detector: str
    predictions: list[Row]
    monitor: dict[str, Any] = Field(description="The state of the monitor")


class Explained(Row):
    """A prediction, and where and how the image differs from normal images."""

    detector: str
    components: list[dict[str, Any]] = Field(description="Significant components, strongest first")
    reasons: list[dict[str, Any]] = Field(description="Strongest first; an export has none")
    image: str = Field(description="The image as the model receives it: a PNG as a data URL")
    heatmap: str = Field(description="The heatmap alone, transparent where nothing is unusual")
    anomaly_map: dict[str, Any] = Field(description="`shape`, and `data`: base64 of little-endian FP32 values")


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
    data: list[Base64Bytes] = Field(min_length=1)

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
