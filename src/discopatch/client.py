"""A client of `discopatch serve`."""

import base64
import io
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import numpy as np
from PIL import Image

from discopatch.errors import ImageError, ParameterError, ServiceError
from discopatch.images import Item, Limits, Refusal, check_bytes, list_source, single
from discopatch.results import Component, Explanation, PredictedImage, Prediction, Predictions, Reason, from_row
from discopatch.utils import require

if TYPE_CHECKING:
    import httpx

Upload: TypeAlias = tuple[str, bytes | Refusal]  # name of an image; its file, or the reason why it cannot be sent
IMAGES_AT_ONCE = 16  # in one request
BYTES_AT_ONCE = 2**25
FORM_BYTES = 1024  # per file, beside its content
LONGEST_NAME = 300
UNNAMED = re.compile(r"image-\d{6,}")  # names of images in memory
LONGEST_PAUSE = 60.0  # seconds before another attempt


class Client(AbstractContextManager["Client"]):
    """A client of the service at a URL.

    `predict` and `explain` take the same images as those of a detector and return the same results, to the bit. A
    request is repeated up to `tries` times while the service is busy (503, 429) or cannot be reached, with one
    `Idempotency-Key`, so that its images count once.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 30, tries: int = 8) -> None:
        require("httpx", "client")
        import httpx

        if tries < 1:
            raise ParameterError(f"tries is {tries}: give at least 1")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._tries = tries
        self._http = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=timeout)

    def detectors(self) -> list[dict[str, Any]]:
        """A summary of each detector of the service."""
        return list(self._json("GET", "/v1/detectors")["detectors"])

    def describe(self, detector: str | None = None) -> dict[str, Any]:
        """Settings, guarantee, threshold, digest and limits. The name is optional if there is one detector."""
        if detector is not None:
            return dict(self._json("GET", f"/v1/detectors/{detector}"))
        found = self.detectors()
        if len(found) != 1:
            names = ", ".join(each["name"] for each in found)
            raise ParameterError(f"the service has the detectors {names}: name one of them")
        return found[0]

    def monitor(self, detector: str | None = None) -> dict[str, Any]:
        """The status of the monitor and its last alarms."""
        return dict(self._json("GET", f"/v1/detectors/{self.describe(detector)['name']}/monitor"))

    def predict(self, images: object, detector: str | None = None) -> Predictions:
        """A prediction for every image, in order; an image that cannot be read is a prediction with an error."""
        return Predictions(self.predict_iter(images, detector))

    def predict_iter(self, images: object, detector: str | None = None) -> Iterator[Prediction]:
        """The predictions one by one, in constant memory."""
        details = self.describe(detector)
        allowed = allowed_sizes(details["limits"])
        uploads = ((item.name, encoded(item, allowed)) for item in list_source(images).items(allowed))
        return self._predict(details["name"], uploads, details["limits"])

    def _predict(self, name: str, uploads: Iterator[Upload], limits: Mapping[str, int]) -> Iterator[Prediction]:
        for group in in_groups(uploads, limits):
            files = [(image, data) for image, data in group if isinstance(data, bytes)]
            rows = self._post(f"/v1/detectors/{name}/score", files)["predictions"] if files else []
            if len(rows) != len(files):
                raise ServiceError(f"{len(rows)} predictions for {len(files)} images: is this a discopatch service?")
            for image, data in group:
                if isinstance(data, Refusal):
                    yield PredictedImage.refused(data).prediction
                else:
                    yield from_row({**rows.pop(0), "name": image})

    def explain(self, image: object, detector: str | None = None) -> Explanation:
        """Where and how one image differs from normal images; a refused image raises ImageError."""
        details = self.describe(detector)
        allowed = allowed_sizes(details["limits"])
        item: Item = single(list_source(image).items(allowed))
        data = encoded(item, allowed)
        if isinstance(data, Refusal):
            raise ImageError(data.reason, f"{item.name}: {data.error}")
        answer = self._post(f"/v1/detectors/{details['name']}/explain", [(item.name, data)])
        return explanation_of({**answer, "name": item.name})

    def _post(self, path: str, files: Sequence[tuple[str, bytes]]) -> Any:
        """The answer to files, whose names are sent as valid Unicode; images in memory get unique names."""
        unique = [f"{uuid4().hex}/image" if UNNAMED.fullmatch(name) else name for name, _ in files]
        names = [name.encode("utf-8", "replace").decode()[-LONGEST_NAME:] for name in unique]
        kind = "application/octet-stream"
        form = [("files", (name, data, kind)) for name, (_, data) in zip(names, files, strict=True)]
        return self._json("POST", path, files=form, headers={"Idempotency-Key": uuid4().hex})

    def _json(self, method: str, path: str, **options: Any) -> Any:
        answer = self._request(method, path, **options)
        try:
            content = answer.json()
            if answer.is_success:
                return content
            detail = str(content["detail"])
        except (ValueError, KeyError, TypeError):
            text = f"{answer.url} answers with status {answer.status_code}: is this a discopatch service?"
            raise ServiceError(text, status=answer.status_code) from None
        if "reason" in content:
            raise ImageError(content["reason"], detail)
        raise ServiceError(detail, status=answer.status_code)

    def _request(self, method: str, path: str, **options: Any) -> "httpx.Response":
        """The response, after further attempts while the service is busy or not reachable."""
        import httpx

        for number in range(1, self._tries + 1):
            pause = min(LONGEST_PAUSE, 0.25 * 2**number)
            try:
                answer = self._http.request(method, path, **options)
                if answer.status_code not in (429, 503) or number == self._tries:
                    return answer
                given = answer.headers.get("Retry-After", "")
                pause = min(LONGEST_PAUSE, float(given)) if given.isdecimal() else pause
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if number == self._tries or not isinstance(error, httpx.TransportError):
                    url = self._http.base_url
                    raise ServiceError(f"{url} cannot be reached ({error}): check the address") from error
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        self._http.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def allowed_sizes(limits: Mapping[str, int]) -> Limits:
    most = min(limits["max_bytes"], limits["max_request_bytes"] - FORM_BYTES)
    return Limits(max_pixels=limits["max_pixels"], max_bytes=most)


def in_groups(uploads: Iterator[Upload], limits: Mapping[str, int]) -> Iterator[list[Upload]]:
    """Groups of images that fit into one request; images without bytes keep their place."""
    most, room = min(IMAGES_AT_ONCE, limits["max_files"]), min(BYTES_AT_ONCE, limits["max_request_bytes"])
    group: list[Upload] = []
    size = 0
    for upload in uploads:
        more = len(upload[1]) + FORM_BYTES if isinstance(upload[1], bytes) else 0
        if group and (len(group) == most or size + more > room):
            yield group
            group, size = [], 0
        group.append(upload)
        size += more
    if group:
        yield group


def encoded(item: Item, limits: Limits) -> bytes | Refusal:
    """The bytes of a file unchanged; an array or a PIL image as PNG, which is lossless."""
    try:
        found = item.encoded(limits)
        if found is not None:
            return found
        buffer, values = io.BytesIO(), item.values(limits)
        if values is None or not values.deep:
            item.decode(limits).save(buffer, "PNG", compress_level=1)
        elif values.kind == "uint16" and values.bands.shape[2] == 1:
            Image.fromarray(values.bands[:, :, 0]).save(buffer, "PNG", compress_level=1)
        else:
            require("tifffile", extra="tiff")
            import tifffile

            planes: Any = {"planarconfig": "contig"} if values.bands.shape[2] > 1 else {}
            photometric = "rgb" if values.bands.shape[2] in (3, 4) else "minisblack"
            tifffile.imwrite(buffer, values.bands, photometric=photometric, **planes)
        data = buffer.getvalue()
        check_bytes(len(data), limits)
        return data
    except ImageError as error:
        return Refusal(item.name, error.reason, error.detail)


def explanation_of(fields: Mapping[str, Any]) -> Explanation:
    with Image.open(io.BytesIO(base64.b64decode(fields["image"].partition(",")[2]))) as image:
        pixels = np.array(image.convert("RGB"))
    values = np.frombuffer(base64.b64decode(fields["anomaly_map"]["data"]), "<f4").astype(np.float32)
    return Explanation(
        from_row(fields),
        pixels,
        values.reshape(fields["anomaly_map"]["shape"]),
        tuple(Reason(**each) for each in fields["reasons"]),
        tuple(Component(**each) for each in fields["components"]),
        tuple(fields["size"]),
    )
