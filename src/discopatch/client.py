"""A client of `discopatch serve`, whose predictions are those of the detector there, to the bit."""

import base64
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from PIL import Image

from discopatch.errors import ImageError, ParameterError, ServiceError
from discopatch.images import Item, Limits, Refusal, check_bytes, check_single, list_source, single
from discopatch.results import Component, ComponentScore, Explanation, PredictedImage, Prediction, Predictions, Reason
from discopatch.utils import require

if TYPE_CHECKING:
    import httpx

AT_ONCE = 16  # images of one request, where the service takes so many
BYTES_AT_ONCE = 2**25
FORM_BYTES = 1024  # that a form needs for each file beside its content
LONGEST_WAIT = 60.0  # seconds before one more try
BUSY = (429, 503)


class Upload(NamedTuple):
    """An image on its way: its name, and the file's bytes or the reason why there are none."""

    name: str
    data: bytes | Refusal


class Client:
    """A service at a URL. `predict` and `explain` take what those of a detector take, and return the same.

    Where the service is too busy (429, 503) or cannot be reached, a request is made again, up to `tries` times; an
    image whose answer was lost may then be twice in the service's history.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 30, tries: int = 8) -> None:
        require("httpx", "client")
        import httpx

        if tries < 1:
            raise ParameterError(f"tries is {tries}: give at least 1")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._tries = tries
        self._http = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=timeout, follow_redirects=False)
        self._described: dict[str, dict[str, Any]] = {}

    def detectors(self) -> list[dict[str, Any]]:
        """What the service says of each of its detectors, in short."""
        found: list[dict[str, Any]] = self._json("GET", "/v1/detectors")["detectors"]
        return found

    def describe(self, detector: str | None = None) -> dict[str, Any]:
        """Settings, guarantee, threshold, digests and limits; the detector may be left out where there is one."""
        return dict(self._json("GET", f"/v1/detectors/{self._name(detector)}"))

    def monitor(self, detector: str | None = None) -> dict[str, Any]:
        """What the monitor says of the images so far, with its last alarms."""
        return dict(self._json("GET", f"/v1/detectors/{self._name(detector)}/monitor"))

    def predict(self, images: object, detector: str | None = None) -> Predictions:
        """A prediction for every image, in order; one that cannot be read is a prediction with an error."""
        return Predictions(self.predict_iter(images, detector))

    def predict_iter(self, images: object, detector: str | None = None) -> Iterator[Prediction]:
        """The same one by one: images are sent a few at a time, in constant memory."""
        name = self._name(detector)
        limits = self._limits(name)
        allowed = Limits(max_pixels=limits["max_pixels"], max_bytes=limits["max_bytes"])
        items = list_source(images).items(allowed)
        uploads = (Upload(item.name, encoded(item, allowed)) for item in items)
        return self._predict(name, uploads, limits)

    def _predict(self, name: str, uploads: Iterator[Upload], limits: Mapping[str, int]) -> Iterator[Prediction]:
        for group in in_groups(uploads, limits):
            sent = [(upload.name, upload.data) for upload in group if isinstance(upload.data, bytes)]
            answers = iter(self._score(name, sent, limits) if sent else ())
            for upload in group:
                if isinstance(upload.data, Refusal):
                    yield PredictedImage.refused(upload.data).prediction
                else:
                    yield prediction_of(upload.name, next(answers))

    def _score(self, name: str, files: Sequence[tuple[str, bytes]], limits: Mapping[str, int]) -> list[dict[str, Any]]:
        path = f"/v1/detectors/{name}/score"
        if len(files) == 1 and len(files[0][1]) + FORM_BYTES > limits["max_request_bytes"]:
            answer = self._json("POST", path, params={"name": files[0][0][-300:]}, content=files[0][1])
        else:
            answer = self._json("POST", path, files=as_form(files))
        found: list[dict[str, Any]] = answer["predictions"]
        if len(found) != len(files):
            raise ServiceError(f"{len(found)} answers for {len(files)} images: is this a discopatch service?")
        return found

    def explain(self, image: object, detector: str | None = None) -> Explanation:
        """Where and how one image differs from normal ones; an image that is refused is an ImageError."""
        check_single(image)
        name = self._name(detector)
        limits = self._limits(name)
        allowed = Limits(max_pixels=limits["max_pixels"], max_bytes=limits["max_bytes"])
        item: Item = single(list_source(image).items(allowed))
        data = encoded(item, allowed)
        if isinstance(data, Refusal):
            raise ImageError(data.reason, f"{item.name}: {data.error}")
        answer = self._json("POST", f"/v1/detectors/{name}/explain", files=as_form([(item.name, data)]))
        return explanation_of(item.name, answer)

    def _name(self, detector: str | None) -> str:
        if detector is not None:
            return detector
        names = [str(each["name"]) for each in self.detectors()]
        if len(names) != 1:
            raise ParameterError(f"the service has the detectors {', '.join(names)}: name one of them")
        return names[0]

    def _limits(self, name: str) -> dict[str, int]:
        if name not in self._described:
            self._described[name] = self.describe(name)
        return dict(self._described[name]["limits"])

    def _json(self, method: str, path: str, **options: Any) -> Any:
        answer = self._request(method, path, **options)
        try:
            return answer.json()
        except ValueError:
            raise ServiceError(f"{answer.url} does not answer with JSON: is this a discopatch service?") from None

    def _request(self, method: str, path: str, **options: Any) -> "httpx.Response":
        """The answer, once the service has the time; ServiceError for any problem."""
        import httpx

        for number in range(1, self._tries + 1):
            pause = min(LONGEST_WAIT, 0.25 * 2**number)
            try:
                answer = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if number == self._tries:
                    url = self._http.base_url
                    raise ServiceError(f"{url} cannot be reached ({error}): check the address") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise ServiceError(f"{self._http.base_url} cannot be used ({error}): check the address") from error
            else:
                if answer.status_code not in BUSY or number == self._tries:
                    return checked(answer)
                given = answer.headers.get("Retry-After", "")
                pause = min(LONGEST_WAIT, float(given)) if given.isdecimal() else pause
            time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def checked(answer: "httpx.Response") -> "httpx.Response":
    """The answer, or ServiceError with what its problem says; of a refused image, ImageError."""
    if answer.is_success:
        return answer
    try:
        problem = answer.json()
        detail = str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        problem, detail = {}, f"{answer.url} answers with status {answer.status_code}: is this a discopatch service?"
    if "reason" in problem:
        raise ImageError(problem["reason"], detail)
    raise ServiceError(detail, status=answer.status_code)


def in_groups(uploads: Iterator[Upload], limits: Mapping[str, int]) -> Iterator[list[Upload]]:
    """So many images as fit into one request; images without bytes stay in their place."""
    most, room = min(AT_ONCE, limits["max_files"]), min(BYTES_AT_ONCE, limits["max_request_bytes"])
    group: list[Upload] = []
    size = 0
    for upload in uploads:
        more = len(upload.data) + FORM_BYTES if isinstance(upload.data, bytes) else 0
        if group and (len(group) == most or size + more > room):
            yield group
            group, size = [], 0
        group.append(upload)
        size += more
    if group:
        yield group


def encoded(item: Item, limits: Limits) -> bytes | Refusal:
    """The bytes of a file as they are; an array or a PIL image as PNG, which loses nothing."""
    try:
        found = item.encoded(limits)
        if found is not None:
            return found
        buffer = io.BytesIO()
        item.decode(limits).save(buffer, "PNG", compress_level=1)
        data = buffer.getvalue()
        check_bytes(len(data), limits)
        return data
    except ImageError as error:
        return Refusal(item.name, error.reason, error.detail)


def as_form(files: Sequence[tuple[str, bytes]]) -> list[tuple[str, tuple[str, bytes, str]]]:
    """A form whose names are text: of a name that is not, only what can be said."""
    return [
        ("files", (name.encode("utf-8", "replace").decode()[-300:], data, "application/octet-stream"))
        for name, data in files
    ]


def prediction_of(name: str, fields: Mapping[str, Any]) -> Prediction:
    if "error" in fields:
        return Prediction(name, None, None, None, str(fields["error"]))
    return Prediction(
        name, fields["score"], fields["p_value"], fields["is_ood"], None, components_of(fields["components"], fields)
    )


def components_of(z_scores: Mapping[str, float], fields: Mapping[str, Any]) -> tuple[ComponentScore, ...]:
    return tuple(ComponentScore(name, z, name in fields["significant"]) for name, z in z_scores.items())


def explanation_of(name: str, fields: Mapping[str, Any]) -> Explanation:
    components = components_of(fields["z_scores"], fields)
    prediction = Prediction(name, fields["score"], fields["p_value"], fields["is_ood"], None, components)
    with Image.open(io.BytesIO(base64.b64decode(fields["image"].partition(",")[2]))) as image:
        pixels = np.array(image.convert("RGB"))
    numbers = fields["anomaly_map"]
    values = np.frombuffer(base64.b64decode(numbers["data"]), "<f4").reshape(numbers["shape"])
    return Explanation(
        prediction,
        pixels,
        values.astype(np.float32),
        tuple(Reason(**each) for each in fields["reasons"]),
        tuple(Component(**each) for each in fields["components"]),
    )
