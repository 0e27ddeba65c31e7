"""Whatever goes wrong is problem details with a request id, and nothing of the inside leaks."""

from typing import Any

import pytest

from discopatch.errors import ImageError
from discopatch.images import Limits
from discopatch.serve.limits import Form, Held, Room
from discopatch.serve.problems import ProblemError
from discopatch.serve.settings import ServeSettings, named_paths
from tests.serve.conftest import Serve
from tests.serve.samples import NAME, SCORE, camera_files, form

FIELDS = {"type", "title", "status", "detail", "instance", "request_id"}


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/nothing", {}, 404),
        ("GET", "/v1/detectors/other", {}, 404),
        ("POST", "/v1/detectors/other/score", {"content": b"x"}, 404),
        ("DELETE", "/v1/detectors", {}, 405),
        ("GET", SCORE, {}, 405),
        ("POST", SCORE, {"json": {}}, 415),
        ("POST", SCORE, {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 422),
        ("POST", SCORE, {"files": {"other": ("a.png", b"x")}}, 422),
        ("POST", SCORE, {"data": {"files": "x"}, "files": {"more": b""}}, 422),
        ("POST", SCORE, {"files": form(camera_files(1) * 65)}, 413),
        ("POST", SCORE, {"content": b"x" * 3_000_000, "headers": {"Content-Type": "image/png"}}, 413),
        ("POST", SCORE, {"files": form([("a", b"x" * 1_000_000)] * 5)}, 413),
        ("GET", f"/v1/detectors/{NAME}/recent?limit=no", {}, 422),
        ("GET", f"/v1/detectors/{NAME}/recent?before=0", {}, 422),
        ("GET", f"/v1/detectors/{NAME}/recent/7/thumbnail", {}, 404),
        ("POST", f"/v2/models/{NAME}/infer", {"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415),
        ("POST", f"/v2/models/{NAME}/infer", {"content": b"x", "headers": {"Content-Type": "application/json"}}, 422),
        ("POST", f"/v1/detectors/{NAME}/score", {"content": b"x", "headers": {"Origin": "http://evil.example"}}, 403),
        ("GET", "/v1/detectors", {"headers": {"Host": "evil.example"}}, 403),
    ],
)
def test_errors_are_problem_details(serve: Serve, method: str, path: str, options: dict[str, Any], status: int) -> None:
    client = serve(max_bytes=2_000_000, max_request_bytes=4_000_000)
    answer = client.request(method, path, **options)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json().keys() >= FIELDS
    assert answer.json()["status"] == status
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    if status == 405:
        assert answer.headers["allow"]


def test_an_error_that_nobody_expected_says_nothing_of_the_inside(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[tuple[Any, ...]] = []
    client = serve(log=lambda *what, **fields: lines.append((*what, fields)))
    monkeypatch.setattr(client.app.state.service.registry.all[0].predictor, "predict_images", lambda *_, **__: 1 / 0)  # type: ignore[attr-defined]
    answer = client.post(SCORE, files=form(camera_files(1)), headers={"X-Request-ID": "mine-1"})
    assert answer.status_code == 500
    assert answer.json()["request_id"] == "mine-1"
    assert "ZeroDivision" not in answer.text
    assert any("ZeroDivisionError" in str(fields) and fields.get("request_id") == "mine-1" for *_, fields in lines)


@pytest.mark.parametrize(
    ("given", "is_kept"), [("abc-1.2:x", True), ("a b", False), ("x" * 200, False), ("a\n", False)]
)
def test_a_sane_request_id_is_kept(serve: Serve, given: str, is_kept: bool) -> None:
    answer = serve().get("/v2/health/live", headers={b"X-Request-ID": given.encode()})
    assert (answer.headers["x-request-id"] == given) == is_kept
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_file_beyond_the_limit_is_refused_and_the_others_are_scored(serve: Serve) -> None:
    client = serve(max_bytes=100_000, max_request_bytes=10_000_000)
    files = [*camera_files(1), ("large.png", b"x" * 2_000_000), *camera_files(1)]
    answer = client.post(SCORE, files=form(files))
    found = answer.json()["predictions"]
    assert found[1]["error"].startswith("too_large: 2,000,000 bytes; at most 100,000")
    assert "score" in found[0]
    assert "score" in found[2]


def read_form(body: bytes, *, step: int, room: int = 10**6) -> Any:
    settings = ServeSettings(detectors=named_paths(["x"]))
    held = Held(Room(room), lambda: ProblemError(429, "queue-full", "full"))
    read = Form(b"xyz", settings, Limits(max_bytes=100), held)
    for start in range(0, len(body), step):
        read.feed(body[start : start + step])
    return read.end(), held


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_form_is_the_same_however_it_is_cut(step: int) -> None:
    part = b'--xyz\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\n\r\n%s\r\n'
    body = (
        part % ("ä.png".encode(), b"--xy z\r\n-" * 9)
        + part % (b"b.png", b"x" * 101)
        + part % (b"", b"")
        + b"--xyz--\r\n"
    )
    items, held = read_form(body, step=step)
    assert [item.name for item in items] == ["ä.png", "b.png", "image-000002"]
    assert items[0].content == b"--xy z\r\n-" * 9
    assert isinstance(items[1].content, ImageError)
    assert held.count == 81


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing",
        b"--xyz\r\n",
        b"--xyz--\r\n",
        b'--xyz\r\nContent-Disposition: form-data; name="files"\r\n\r\nx\r\n',
        b'--xyz\r\nContent-Disposition: form-data; name="url"\r\n\r\nhttp://x\r\n--xyz--\r\n',
        b"--xyz\r\nX: " + b"y" * 5000 + b"\r\n\r\nx\r\n--xyz--\r\n",
        b"--xyz\r\n\r\nx\r\n--xyz--\r\n",
    ],
)
def test_what_is_no_whole_form_is_a_problem(body: bytes) -> None:
    with pytest.raises(ProblemError) as refused:
        read_form(body, step=3)
    assert refused.value.status == 422


def test_detectors_are_named_after_their_paths(tmp_path: Any) -> None:
    found = named_paths([str(tmp_path / "camera-3"), "four=a/b.safetensors", "c/d.safetensors"])
    assert list(found) == ["camera-3", "four", "d"]
    for wrong in (["a", "b/a"], ["x/a b"]):
        with pytest.raises(ValueError):
            named_paths(wrong)
