"""Requests and responses: scores are those of `predict` to the bit, and every error is problem details."""

import base64
import contextlib
import io
import json
import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import discopatch
from discopatch import Detector
from discopatch.cli.serve import detector_paths
from discopatch.errors import ParameterError
from discopatch.groups import group_names
from discopatch.history import default_path
from discopatch.images import Item, NamedImage
from discopatch.serve import limits
from discopatch.serve.settings import ServeSettings, read_tokens
from tests.images.bombs import images as bombs
from tests.samples import new_detector, one_camera
from tests.serve.conftest import Serve
from tests.serve.samples import (
    DETECTOR,
    EXPLAIN,
    INFER,
    MONITOR,
    NAME,
    RECENT,
    SCORE,
    camera_files,
    form,
    noise,
    png,
    rows_of,
    wait_until,
)

BAD = [("empty.png", b""), ("words.jpg", b"no image at all"), ("cut.png", png(noise(64))[:200]), ("raw.cr2", b"II*\0")]
FIRST, SECOND, READER, SCORER = ("a" * 32, "b" * 32, "r" * 32, "s" * 32)
PART = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nabc\r\n'
CUT_FORM = {"content": PART + PART, "headers": {"Content-Type": "multipart/form-data; boundary=x"}}
JSON_TYPE = {"Content-Type": "application/json"}


def test_scores_and_errors_are_those_of_predict(serve: Serve, detector: Detector) -> None:
    client = serve()
    files = [*camera_files(5), *BAD, *camera_files(2, seed=2)]
    answer = client.post(SCORE, files=form(files)).json()
    assert answer["predictions"] == rows_of(detector, files)
    assert {each["is_ood"] for each in answer["predictions"][5:9]} == {None}
    assert (answer["monitor"]["images"], answer["monitor"]["refused"]) == (7, 4)


def test_a_body_is_one_image_whose_name_is_returned_in_one_line(serve: Serve, detector: Detector) -> None:
    client, data = serve(), camera_files(1)[0][1]
    for given, name in (
        ("../a/b.png", "../a/b.png"),
        ("a\u202eb\u2028c.png", "a\\u202eb\\u2028c.png"),
        ("x" * 400 + ".png", "x" * 296 + ".png"),
    ):
        answer = client.post(SCORE, params={"name": given}, content=data, headers={"Content-Type": "image/png"})
        assert answer.json()["predictions"] == rows_of(detector, [(name, data)])


def test_images_without_a_name_get_one_that_is_a_group_of_its_own(serve: Serve) -> None:
    client, data, names = serve(), camera_files(1)[0][1], []
    for _ in range(3):
        answer = client.post(SCORE, content=data, headers={"Content-Type": "image/png"})
        names.append(answer.json()["predictions"][0]["name"])
    tensor = {"name": "images", "datatype": "BYTES", "shape": [2], "data": [base64.b64encode(data).decode()] * 2}
    named = {"name": "names", "datatype": "BYTES", "shape": [2], "data": ["part-1.png", "part-2.png"]}
    for inputs in ([tensor], [tensor, named]):
        assert client.post(INFER, json={"inputs": inputs}).status_code == 200
    wait_until(lambda: client.get(RECENT).json()["images"] == 7)
    found = [each["name"] for each in client.get(RECENT).json()["entries"]]
    assert (found[:2], found[4:]) == (["part-2.png", "part-1.png"], names[::-1])
    for rule in ("name", "folder"):
        assert len(set(group_names(found[2:], rule))) == 5
    for inputs in ([named], [tensor, tensor], [tensor, {**named, "shape": [1], "data": ["a"]}]):
        assert client.post(INFER, json={"inputs": inputs}).status_code == 422


def test_names_with_folders_are_groups_and_the_metrics_show_when_too_few_images_count(
    serve: Serve, tmp_path: Path
) -> None:
    images = [NamedImage(f"lot-{n // 2}/{n}.png", each.pixels) for n, each in enumerate(one_camera(80))]
    new_detector(head="statistics").fit(images, groups="folder", workers=1).save(tmp_path / "lots.safetensors")
    client, data = serve(detectors={NAME: tmp_path / "lots.safetensors"}), camera_files(1)[0][1]

    def send(*names: str) -> tuple[list[str], str]:
        answer = client.post(SCORE, files=form([(name, data) for name in names])).json()
        (few,) = re.findall(r"discopatch_monitor_few_count{.*} (\S+)", client.get("/metrics").text)
        return [row["name"] for row in answer["predictions"]], few

    names = ["lot-1/1.png", "lot-1/2.png", "lot-2/1.png", "C:/lot-2/1.png"]
    assert send(*names) == (names, "0.0")
    client.post(SCORE, content=data, params={"name": "lot-3/1.png"}, headers={"Content-Type": "image/png"})
    assert client.get(MONITOR).json()["counted"] == 4
    assert send(*(f"{number}.png" for number in range(20)))[1] == "0.0"
    assert send("20.png")[1] == "1.0", "ten times the two images of a normal group"
    assert "discopatch_monitor_uncounted_images{" in client.get("/metrics").text
    assert send("lot-4/1.png")[1] == "0.0"


def test_bombs_and_files_beyond_the_limit_are_refused_one_by_one(serve: Serve, detector_file: Path) -> None:
    client = serve(max_pixels=10**6, max_bytes=10**6)
    local = Detector.load(detector_file, device="cpu", max_pixels=10**6, max_bytes=10**6)
    files = [*bombs().items(), ("large.png", b"x" * 1_100_000), *camera_files(1)]
    found = client.post(SCORE, files=form(files)).json()["predictions"]
    assert found == rows_of(local, files)
    assert found[-2]["error"].startswith("too_large")
    assert found[-1]["error"] is None


def test_an_explanation_is_that_of_the_detector(serve: Serve, detector: Detector) -> None:
    client = serve()
    ((name, data),) = camera_files(1)
    wanted = detector.explain([Item(name, data)])
    found = client.post(EXPLAIN, files=form([(name, data)])).json()
    assert found.items() >= rows_of(detector, [(name, data)])[0].items()
    assert found["reasons"] == [each._asdict() for each in wanted.reasons]
    assert found["regions"] == json.loads(json.dumps([each._asdict() for each in wanted.regions]))
    values = np.frombuffer(base64.b64decode(found["anomaly_map"]["data"]), "<f4")
    assert (values.reshape(found["anomaly_map"]["shape"]) == wanted.anomaly_map).all()
    overlay = client.post(EXPLAIN, files=form([(name, data)]), headers={"Accept": "image/png"})
    with Image.open(io.BytesIO(overlay.content)) as image:
        assert (overlay.headers["content-type"], image.format) == ("image/png", "PNG")
    assert client.get(MONITOR).json()["images"] == 0, "an explanation is not part of the stream"
    refused = client.post(EXPLAIN, files=form([("a.png", b"nothing")]))
    assert (refused.status_code, refused.json()["reason"]) == (422, "not_an_image")
    assert client.post(EXPLAIN, files=form(camera_files(2))).status_code == 422


def test_inference_gives_the_same_scores(serve: Serve, detector: Detector) -> None:
    files = [*camera_files(3), ("bad", b"")]
    data = [*(base64.b64encode(each).decode() for _, each in files), "no base64!"]
    tensor = {"name": "images", "datatype": "BYTES", "shape": [5], "data": data}
    outputs = [{"name": name} for name in ("score", "p_value", "is_ood", "error")]
    answer = serve().post(INFER, json={"id": "one", "inputs": [tensor], "outputs": outputs}).json()
    wanted = rows_of(detector, files)
    found = {each["name"]: each["data"] for each in answer["outputs"]}
    for name in ("score", "p_value", "is_ood", "error"):
        assert found[name][:4] == [row[name] for row in wanted]
    assert (found["is_ood"][4], found["error"][4].partition(":")[0]) == (None, "not_an_image")
    assert (answer["id"], answer["model_version"]) == ("one", detector.digest_)


@pytest.mark.parametrize("outputs", [None, [{"name": "is_ood"}]])
def test_an_inference_without_error_among_its_outputs_never_answers_an_unreadable_image(
    serve: Serve, outputs: Any
) -> None:
    client = serve()
    good = base64.b64encode(camera_files(1)[0][1]).decode()
    for data, status, counted in (([good, "eA=="], 422, (0, 1)), ([good], 200, (1, 1))):
        tensor = {"name": "images", "datatype": "BYTES", "shape": [len(data)], "data": data}
        answer = client.post(INFER, json={"inputs": [tensor], "outputs": outputs})
        assert answer.status_code == status
        assert "error" not in answer.json() or "image 1 " in answer.json()["error"]
        found = client.get(MONITOR).json()
        assert (found["images"], found["refused"]) == counted, "the good image of a refused request does not count"


def test_images_are_scored_without_counting_on_request(serve: Serve, detector: Detector) -> None:
    client, files = serve(), camera_files(1)
    tensor = {"name": "images", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(files[0][1]).decode()]}
    found = client.post(SCORE, params={"count": "false"}, files=form(files)).json()["predictions"]
    assert found == rows_of(detector, files)
    inferred = client.post(INFER, json={"inputs": [tensor], "parameters": {"count": False, "other": 1}}).json()
    assert inferred["outputs"][0]["data"] == [found[0]["score"]]
    client.post(SCORE, files=form(camera_files(2)))
    assert client.get(MONITOR).json()["images"] == 2
    assert f'discopatch_images_total{{detector="{NAME}"}} 2.0' in client.get("/metrics").text


@pytest.mark.parametrize(
    ("status", "tensor"),
    [
        (422, '"datatype": "FP32", "shape": [1], "data": [1]'),
        (422, '"datatype": "BYTES", "shape": [2], "data": ["eA=="]'),
        (422, '"datatype": "BYTES", "shape": [1], "data": [1]'),
        (413, '"datatype": "BYTES", "shape": [5], "data": ["", "", "", "", ""]'),
        (400, '"datatype": ' + "[" * 100_000),
    ],
)
def test_an_invalid_inference_request_is_a_problem(serve: Serve, status: int, tensor: str) -> None:
    answer = serve(max_files=4).post(INFER, content=f'{{"inputs": [{{"name": "x", {tensor}}}]}}', headers=JSON_TYPE)
    assert answer.status_code == status
    assert answer.json()["error"] == answer.json()["detail"]


@pytest.mark.parametrize(
    ("status", "method", "path", "options"),
    [
        (404, "GET", "/nothing", {}),
        (404, "POST", "/v1/detectors/other/score", {"content": b"x"}),
        (405, "GET", SCORE, {}),
        (415, "POST", SCORE, {"json": {}}),
        (422, "POST", SCORE, {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}),
        (422, "POST", SCORE, {"data": {"files": "x"}, "files": {"more": b""}}),
        (422, "POST", SCORE, CUT_FORM),
        (413, "POST", SCORE, {"files": form([("a", b"x")] * 65)}),
        (413, "POST", SCORE, {"files": form([("a", b"x" * 1_000_000)] * 5)}),
        (413, "POST", SCORE, {"content": iter([b"x" * 1_000_000] * 5), "headers": {"Content-Type": "image/png"}}),
        (413, "POST", INFER, {"content": b" " * 1_000_001, "headers": JSON_TYPE}),
        (422, "GET", f"{RECENT}?before=0", {}),
        (404, "GET", f"{RECENT}/7/thumbnail", {}),
        (404, "GET", "/v2/models/other/ready", {}),
    ],
)
def test_every_error_is_problem_details(serve: Serve, status: int, method: str, path: str, options: Any) -> None:
    answer = serve(max_request_bytes=4_000_000, max_json_bytes=1_000_000).request(method, path, **options)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json().keys() >= {"type", "title", "detail", "instance"}
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_an_unexpected_error_reveals_nothing(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    client = serve()
    client.app.state.service.loaded[NAME].detector.predict_images = lambda *_, **__: iter([1 / 0])  # type: ignore[attr-defined]
    with caplog.at_level(logging.INFO):
        answer = client.post(SCORE, files=form(camera_files(1)), headers={"X-Request-ID": "mine-1"})
    assert (answer.status_code, answer.json()["request_id"]) == (500, "mine-1")
    assert "ZeroDivision" not in answer.text
    (line,) = [each for each in caplog.records if each.exc_info]
    assert line.fields["request_id"] == "mine-1"  # type: ignore[attr-defined]
    assert client.get("/v2", headers={b"X-Request-ID": b"a b"}).headers["x-request-id"] != "a b"


def test_detectors_models_and_health_are_described(serve: Serve, detector: Detector) -> None:
    client = serve()
    details = client.get(DETECTOR).json()
    assert client.get("/v1/detectors").json() == {"detectors": [details], "role": "admin"}
    assert (details["name"], details["kind"], details["digest"]) == (NAME, "detector", detector.digest_)
    assert (details["threshold"], details["guarantee"]) == (detector.threshold_, detector.guarantee_.text)
    assert (details["n_calibration"], details["limits"]["max_files"]) == (len(detector.calibration_scores_), 64)
    assert client.get("/v2").json()["name"] == "discopatch"
    assert client.get(f"/v2/models/{NAME}/ready").json() == {"name": NAME, "ready": True}
    assert client.get(f"/v2/models/{NAME}").json()["outputs"][0] == {"name": "score", "datatype": "FP64", "shape": [-1]}
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    operations = [each for path in client.get("/openapi.json").json()["paths"].values() for each in path.values()]
    assert len(operations) == 20
    assert all(list(each["responses"]["4XX"]["content"]) == ["application/problem+json"] for each in operations)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# two with all rights\n{FIRST}\n\n  {SECOND}\nread {READER}\nscore   {SCORER}\n")
    return path


def test_all_but_the_page_and_health_need_a_token(serve: Serve, token_file: Path) -> None:
    client = serve(token_file=token_file)
    for path in ("/v1/detectors", "/metrics", "/openapi.json", "/v2", "/nothing", SCORE):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    for path in ("/", "/v2/health/live", "/v2/health/ready"):
        assert client.get(path).status_code == 200
    for given, status in (
        (f"Bearer {FIRST}", 200),
        (f"bearer  {SECOND} ", 200),
        (f"Basic {FIRST}", 401),
        (f"Bearer {FIRST[:-1]}", 401),
        ("Bearer # two with all rights", 401),
        (f"Bearer read {READER}", 401),
        ("Bearer ", 401),
        ("Bearer \xe4", 401),
    ):
        headers = {b"Authorization": given.encode("latin-1")}
        assert client.get("/v1/detectors", headers=headers).status_code == status, given


def test_the_description_names_the_token_where_one_is_needed(serve: Serve, token_file: Path) -> None:
    assert "securitySchemes" not in serve().get("/openapi.json").json()["components"]
    headers = {"Authorization": f"Bearer {FIRST}"}
    found = serve(token_file=token_file).get("/openapi.json", headers=headers).json()
    assert found["components"]["securitySchemes"] == {"HTTPBearer": {"type": "http", "scheme": "bearer"}}
    roles = {"/v1/detectors": "read", "/v1/detectors/{name}/score": "score", "/v1/reload": "admin", "/": None}
    for path, role in roles.items():
        (operation,) = found["paths"][path].values()
        assert operation["security"] == ([{"HTTPBearer": [role]}] if role else [])


def test_a_token_may_do_what_its_role_allows(serve: Serve, token_file: Path) -> None:
    client, image = serve(token_file=token_file), camera_files(1)[0][1]
    tensor = {"name": "images", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(image).decode()]}
    requests: list[tuple[str, str, dict[str, Any], int]] = [
        *(("GET", path, {}, 0) for path in ("/v1/detectors", DETECTOR, MONITOR, RECENT, "/metrics", "/openapi.json")),
        ("HEAD", DETECTOR, {}, 0),
        ("POST", SCORE, {"content": image}, 1),
        ("POST", EXPLAIN, {"content": image}, 1),
        ("POST", INFER, {"json": {"inputs": [tensor]}}, 1),
        ("POST", f"{MONITOR}/restart", {}, 2),
        ("POST", "/v1/reload", {}, 2),
        ("DELETE", DETECTOR, {}, 2),
    ]
    roles = ("read", "score", "admin")
    for rank, token in enumerate((READER, SCORER, FIRST)):
        headers = {"Authorization": f"Bearer {token}"}
        assert client.get("/v1/detectors", headers=headers).json()["role"] == roles[rank]
        for method, path, options, needed in requests:
            answer = client.request(method, path, headers=headers, **options)
            allowed = 405 if method == "DELETE" else 200
            assert answer.status_code == (403 if rank < needed else allowed), (token, path)
            if rank < needed:
                assert (answer.json()["type"].rpartition(":")[2], answer.json()["needed"]) == ("role", roles[needed])


def test_a_client_that_sends_more_images_than_its_rate_is_told_when_to_send_again(
    serve: Serve, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, now = serve(token_file=token_file, client_rate=6), time.monotonic()
    monkeypatch.setattr("discopatch.serve.limits.monotonic", lambda: now)
    first, second = ({"Authorization": f"Bearer {token}"} for token in (SCORER, FIRST))
    for count in (5, 3):  # the last of them is begun while one image is left
        assert client.post(SCORE, files=form(camera_files(count)), headers=first).status_code == 200
    bad = client.post(SCORE, content=b"never read", headers={**first, "Content-Type": "text/plain"})
    assert (bad.status_code, bad.json()["type"].rpartition(":")[2]) == (429, "client-rate")
    assert bad.headers["retry-after"] == "30", "two images too many, and one to send: at six a minute"
    assert client.get(DETECTOR, headers=first).status_code == 200
    assert client.post(SCORE, files=form(camera_files(6)), headers=second).status_code == 200
    for later, status in ((29.9, 429), (30.1, 200), (30.1, 429), (1e6, 200)):
        monkeypatch.setattr("discopatch.serve.limits.monotonic", lambda later=later: now + later)
        assert client.post(EXPLAIN, files=form(camera_files(1)), headers=first).status_code == status, later
    text = client.get("/metrics", headers=first).text
    assert 'method="POST",route="/v1/detectors/{name}/explain",status="429"} 2.0' in text


def test_the_number_of_clients_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CLIENTS", 3)
    rates = limits.ClientRates(1)
    for address in ("a", "b", "c", "d", "b"):
        with contextlib.suppress(limits.ProblemError):
            rates.take({"client": address}, 1)
    assert list(rates._left) == ["c", "d", "b"]


def test_head_has_the_status_and_headers_of_get(serve: Serve) -> None:
    client = serve()
    for path, status in (("/", 200), (DETECTOR, 200), ("/v2/health/live", 200), ("/nothing", 404), (SCORE, 405)):
        head, get = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (status, b"")
        assert head.headers["content-length"] == get.headers["content-length"] if status == 200 else True
    assert 'method="HEAD",route="/",status="200"} 1.0' in client.get("/metrics").text


def test_a_reload_reads_the_tokens_again_or_keeps_them(serve: Serve, token_file: Path) -> None:
    client = serve(token_file=token_file)
    old, new = {"Authorization": f"Bearer {FIRST}"}, {"Authorization": f"Bearer {'c' * 32}"}
    for content, sender, status in (("c" * 32, old, 200), ("# none\n", new, 422)):
        token_file.write_text(content)
        assert client.post("/v1/reload", headers=sender).status_code == status
        assert client.get("/v1/detectors", headers=new).status_code == 200
        assert client.get("/v1/detectors", headers=old).status_code == 401


def test_pages_of_other_origins_and_host_names_are_refused(serve: Serve) -> None:
    client, files = serve(), form(camera_files(1))
    for origin, status in (("https://factory.example", 403), ("http://127.0.0.1", 200)):
        answer = client.post(SCORE, files=files, headers={"Origin": origin})
        assert answer.status_code == status
        assert "access-control-allow-origin" not in answer.headers
    for host, status in (("localhost:8080", 200), ("127.0.0.1", 200), ("[::1]:8080", 200), ("rebound.example", 403)):
        assert client.get("/v2", headers={"Host": host}).status_code == status, host


def test_wrong_settings_are_refused() -> None:
    wrong: dict[str, Any]
    for wrong in (
        {"max_files": 10, "max_queue": 5},
        {"max_pixels": 0},
        {"rate": 1.5},
        {"timeout": -1.0},
        {"detectors": {}},
        {"detectors": {"a/b": Path("a")}},
    ):
        with pytest.raises(ParameterError):
            ServeSettings(**{"detectors": {"a": Path("a")}, **wrong})  # type: ignore[arg-type]


def test_detectors_are_named_after_their_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = detector_paths(["a/camera-1.safetensors", "b/camera-2", "four=c/d=e"])
    assert found == {"camera-1": Path("a/camera-1.safetensors"), "camera-2": Path("b/camera-2"), "four": Path("c/d=e")}
    with pytest.raises(ParameterError, match="two"):
        detector_paths(["a/x", "b/x"])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path("serve-8080") == tmp_path / "discopatch" / "serve-8080.sqlite"


def test_a_file_without_proper_tokens_is_an_error(tmp_path: Path) -> None:
    token = b"t" * 16
    wrong = (b"write " + token, b"read score " + token, b"read short", b"read " + token + b"\nadmin " + token)
    for content in (b"", b"# x\n", b"short", b"a b" * 20, "ä".encode() * 20, *wrong):
        (tmp_path / "tokens").write_bytes(content)
        with pytest.raises(ParameterError):
            read_tokens(tmp_path / "tokens")


def test_the_version_of_the_package_is_in_the_metrics(serve: Serve) -> None:
    client = serve()
    client.post(SCORE, files=form([*camera_files(3), ("bad.png", b"x")]))
    client.get("/nothing")
    text = client.get("/metrics").text
    assert f'version="{discopatch.__version__}"' in text
    assert f'discopatch_images_total{{detector="{NAME}"}} 3.0' in text
    assert f'discopatch_refused_images_total{{detector="{NAME}",reason="not_an_image"}} 1.0' in text
    assert 'discopatch_requests_total{method="POST",route="/v1/detectors/{name}/score",status="200"} 1.0' in text
    assert 'route="unmatched",status="404"' in text


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """The file of a detector that a test may change."""
    path = tmp_path / "own.safetensors"
    new_detector().fit(one_camera(40), workers=1).save(path)
    return path


def test_an_accepted_image_is_normal_for_the_service_and_its_file_until_it_is_taken_back(
    serve: Serve, own_file: Path
) -> None:
    client, files = serve(detectors={NAME: own_file}), [("odd.png", png(noise(64)))]
    (before,) = client.post(SCORE, files=form(files)).json()["predictions"]
    answer = client.post(f"{DETECTOR}/accept", files=form(files)).json()
    (after,) = answer["predictions"]
    assert (before["is_ood"], after["is_ood"]) == (True, False)
    assert [each["name"] for each in answer["accepted"]] == ["odd.png"]
    assert client.post(SCORE, files=form(files)).json()["predictions"] == [after]
    assert client.get(MONITOR).json()["images"] == 2, "the calibration is the same, and so is the stream"
    assert Detector.load(own_file, device="cpu").score([noise(64)])[0] == after["score"]
    digest = answer["accepted"][0]["digest"]
    assert client.delete(f"{DETECTOR}/accepted/{digest}").json()["accepted"] == []
    assert client.post(SCORE, files=form(files)).json()["predictions"] == [before]
    again = client.delete(f"{DETECTOR}/accepted/{digest}")
    assert (again.status_code, again.json()["type"].rpartition(":")[2]) == (422, "change-refused")


def test_acceptances_at_once_are_all_kept_and_a_bad_image_changes_nothing(serve: Serve, own_file: Path) -> None:
    client = serve(detectors={NAME: own_file})
    with ThreadPoolExecutor(4) as pool:
        files = [form([(f"{number}.png", png(noise(64 + number)))]) for number in range(4)]
        answers = list(pool.map(lambda each: client.post(f"{DETECTOR}/accept", files=each), files))
    assert {answer.status_code for answer in answers} == {200}
    assert sorted(each.name for each in Detector.load(own_file, device="cpu").accepted_) == [
        f"{n}.png" for n in range(4)
    ]
    before = own_file.read_bytes()
    refused = client.post(f"{DETECTOR}/accept", files=form([BAD[1]]))
    assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (422, "change-refused")
    assert "words.jpg" in refused.json()["detail"]
    assert own_file.read_bytes() == before


def test_an_export_accepts_nothing_and_names_the_way(serve: Serve, export_folder: Path) -> None:
    client = serve(detectors={NAME: export_folder})
    refused = client.post(f"{DETECTOR}/accept", files=form(camera_files(1)))
    assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (409, "cannot-change")
