"""The Open Inference Protocol (version 2), as far as clients of KServe use it: images in, scores out, as JSON."""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from discopatch.errors import ImageError
from discopatch.images import RefusalReason
from discopatch.images.items import Item
from discopatch.results import Prediction
from discopatch.serve.limits import clean_name
from discopatch.serve.problems import ProblemError

IMAGES = "images"
INPUTS = [
    {"name": IMAGES, "datatype": "BYTES", "shape": [-1]},
    {"name": IMAGES, "datatype": "UINT8", "shape": [-1, -1, -1, 3]},
]
OUTPUTS = [
    {"name": "score", "datatype": "FP64", "shape": [-1]},
    {"name": "p_value", "datatype": "FP64", "shape": [-1]},
    {"name": "is_ood", "datatype": "BOOL", "shape": [-1]},
    {"name": "error", "datatype": "BYTES", "shape": [-1]},
]


class WantedOutput(BaseModel):
    """An output that is asked for; without any, all are given."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str


class InputTensor(BaseModel):
    """The images: encoded files in base64 (BYTES), or pixels of one size (UINT8, shape [images, height, width, 3])."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str
    datatype: str = Field(description="BYTES or UINT8")
    shape: list[int] = Field(max_length=8)
    data: list[Any] = Field(description="Base64 texts, or numbers from 0 to 255, flat or nested")


class InferenceRequest(BaseModel):
    """One input, named images or otherwise, and the outputs that are wanted."""

    model_config = ConfigDict(extra="ignore", strict=True)

    id: str | None = Field(None, max_length=200)
    inputs: list[InputTensor] = Field(min_length=1, max_length=1)
    outputs: list[WantedOutput] | None = None


def parse_request(body: bytes, *, max_files: int) -> tuple[InferenceRequest, list[Item]]:
    """The request and its images, not decoded yet; 422 where it is no such request. Runs in a thread of its own."""
    try:
        content = json.loads(body)
        request = InferenceRequest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise invalid(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise invalid(f"not JSON: {str(error)[:200]}") from None
    check_outputs(request)
    given = request.inputs[0]
    match given.datatype:
        case "BYTES":
            items = encoded_items(given)
        case "UINT8":
            items = pixel_items(given)
        case _:
            raise invalid(f"inputs.0.datatype is {given.datatype[:50]!r}: give BYTES or UINT8")
    if not items:
        raise invalid("inputs.0 has no images")
    if len(items) > max_files:
        detail = f"{len(items):,} images are more than the {max_files:,} that one request may have: send fewer at once"
        raise ProblemError(413, "too-many-files", detail, limit=max_files)
    return request, items


def check_outputs(request: InferenceRequest) -> None:
    known = {str(each["name"]) for each in OUTPUTS}
    for output in request.outputs or ():
        if output.name not in known:
            raise invalid(f"there is no output {output.name[:50]!r}, but {', '.join(sorted(known))}")


def encoded_items(given: InputTensor) -> list[Item]:
    """One image a text; what is no base64 is refused by itself."""
    if given.shape not in ([len(given.data)], [len(given.data), 1]):
        raise invalid(f"inputs.0.shape is {given.shape}, but there are {len(given.data)} texts")
    items = []
    for number, text in enumerate(given.data):
        if not isinstance(text, str):
            raise invalid(f"inputs.0.data.{number} is no text: give images as base64")
        try:
            content: bytes | ImageError = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            content = ImageError(RefusalReason.UNREADABLE, "no base64: encode the bytes of the image file")
        if not content:
            content = ImageError(RefusalReason.EMPTY, "0 bytes")
        items.append(Item(clean_name(None, number), content))
    return items


def pixel_items(given: InputTensor) -> list[Item]:
    if len(given.shape) != 4 or given.shape[3] != 3 or min(given.shape) < 1:
        raise invalid(f"inputs.0.shape is {given.shape}: give [images, height, width, 3]")
    try:
        values = np.array(given.data)
    except (ValueError, OverflowError, RecursionError):
        raise invalid("inputs.0.data is not of one shape: give whole numbers from 0 to 255") from None
    if values.dtype.kind not in "iu" or values.size != np.prod(given.shape, dtype=object):
        raise invalid(f"inputs.0.data does not have the shape {given.shape}, or not whole numbers alone")
    if values.min() < 0 or values.max() > 255:
        raise invalid("inputs.0.data has numbers beyond 0 to 255")
    pixels = values.astype(np.uint8).reshape(given.shape)
    return [Item(clean_name(None, number), image) for number, image in enumerate(pixels)]


def invalid(detail: str) -> ProblemError:
    return ProblemError(422, "invalid", detail)


def answer(model: str, version: str, request: InferenceRequest, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The outputs that were asked for, a value an image: null, false and the error where one was refused."""
    values: dict[str, list[Any]] = {
        "score": [each.score for each in predictions],
        "p_value": [each.p_value for each in predictions],
        "is_ood": [bool(each.is_ood) for each in predictions],
        "error": [each.error or "" for each in predictions],
    }
    wanted = {each.name for each in request.outputs} if request.outputs else set(values)
    outputs = [
        {"name": each["name"], "datatype": each["datatype"], "shape": [len(predictions)], "data": values[each["name"]]}
        for each in OUTPUTS
        if each["name"] in wanted
    ]
    found = {"model_name": model, "model_version": version, "outputs": outputs}
    return found if request.id is None else {**found, "id": request.id}
