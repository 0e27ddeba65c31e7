"""Scores over HTTP are those of `predict` to the bit, and so are errors."""

import base64
from pathlib import Path

import numpy as np
import pytest

import discopatch
from discopatch.images.items import Item
from discopatch.results import Prediction, Predictor
from discopatch.serve.recording import prediction_dict
from tests.images.bombs import images as bombs
from tests.serve.conftest import Serve
from tests.serve.samples import NAME, SCORE, camera_files, form, named, noise, png

BAD = [("empty.png", b""), ("words.jpg", b"no image at all"), ("cut.png", png(noise(64))[:200]), ("raw.cr2", b"II*\0")]


def expected(predictor: Predictor, files: list[tuple[str, bytes]]) -> list[Prediction]:
    """What `predict` says of the bytes under these names."""
    return list(predictor.predict([Item(name, data) for name, data in files]))


@pytest.mark.parametrize("kind", ["export", "detector"])
def test_scores_and_errors_are_those_of_predict(
    serve: Serve, export_folder: Path, detector_file: Path, kind: str
) -> None:
    path = export_folder if kind == "export" else detector_file
    client = serve(detectors={NAME: path})
    files = [*camera_files(7), *BAD, *camera_files(3, seed=2)]
    answer = client.post(SCORE, files=form(files))
    assert answer.status_code == 200
    found = answer.json()["predictions"]
    assert found == [prediction_dict(each) for each in expected(discopatch.load(path), files)]
    assert [each["name"] for each in found] == [name for name, _ in files]
    assert answer.json()["monitor"]["images"] == 10
    assert answer.json()["monitor"]["refused"] == len(BAD)


def test_a_body_is_one_image(serve: Serve, export_folder: Path) -> None:
    client = serve()
    ((_, data),) = camera_files(1)
    for kind in ("image/png", "application/octet-stream", "image/x-anything"):
        answer = client.post(f"{SCORE}?name=a/b.png", content=data, headers={"Content-Type": kind})
        assert answer.status_code == 200
        (found,) = answer.json()["predictions"]
        (wanted,) = expected(discopatch.load(export_folder), [("a/b.png", data)])
        assert found == prediction_dict(wanted)


def test_bombs_are_refused_one_by_one(serve: Serve, export_folder: Path) -> None:
    client = serve(max_pixels=10**6)
    for name, data in bombs().items():
        answer = client.post(SCORE, files=form([(name, data), *camera_files(1)]))
        assert answer.status_code == 200
        wanted = expected(discopatch.load(export_folder, max_pixels=10**6), [(name, data), *camera_files(1)])
        assert answer.json()["predictions"] == [prediction_dict(each) for each in wanted]


def test_a_name_is_one_line_and_only_given_back(serve: Serve) -> None:
    client = serve()
    data = camera_files(1)[0][1]
    for given, wanted in (
        ("http://elsewhere/x.png", "http://elsewhere/x.png"),
        ("../../etc/passwd", "../../etc/passwd"),
        ("a\u202eb\u2028c.png", "a\\u202eb\\u2028c.png"),
        ("", "image-000000"),
        ("x" * 400 + ".png", "x" * 296 + ".png"),
    ):
        answer = client.post(SCORE, params={"name": given}, content=data, headers={"Content-Type": "image/png"})
        assert [each["name"] for each in answer.json()["predictions"]] == [wanted]
        assert "score" in answer.json()["predictions"][0]


def test_an_explanation_is_that_of_the_detector(serve: Serve, detector_file: Path) -> None:
    client = serve(detectors={NAME: detector_file})
    ((name, data),) = camera_files(1)
    wanted = discopatch.load(detector_file).explain([Item(name, data)])
    answer = client.post(f"/v1/detectors/{NAME}/explain", files=form([(name, data)]))
    found = answer.json()
    assert found["score"] == wanted.prediction.score
    assert found["reasons"] == [each._asdict() for each in wanted.reasons]
    numbers = np.frombuffer(base64.b64decode(found["anomaly_map"]["data"]), "<f4")
    assert (numbers.reshape(found["anomaly_map"]["shape"]) == wanted.anomaly_map).all()
    for part in ("image", "heatmap", "overlay"):
        assert found[part].startswith("data:image/png;base64,")
    image = client.post(f"/v1/detectors/{NAME}/explain", files=form([(name, data)]), headers={"Accept": "image/png"})
    assert image.headers["content-type"] == "image/png"
    assert image.content == base64.b64decode(found["overlay"].partition(",")[2])
    assert client.get(f"/v1/detectors/{NAME}/monitor").json()["images"] == 0, "an explanation is no image of the stream"


def test_what_cannot_be_explained_is_a_problem(serve: Serve) -> None:
    client = serve()
    explain = f"/v1/detectors/{NAME}/explain"
    refused = client.post(explain, files=form([("a.png", b"nothing")]))
    assert refused.status_code == 422
    assert refused.json()["reason"] == "not_an_image"
    assert client.post(explain, files=form(camera_files(2))).status_code == 422


def test_detectors_are_described(serve: Serve, export_folder: Path) -> None:
    client, runtime = serve(), discopatch.load(export_folder)
    (short,) = client.get("/v1/detectors").json()["detectors"]
    full = client.get(f"/v1/detectors/{NAME}").json()
    assert short["name"] == full["name"] == NAME
    assert full["threshold"] == runtime.threshold_
    assert full["guarantee"]["text"] == runtime.guarantee_.text
    assert sum(full["calibration"]["counts"]) == full["guarantee"]["n_calibration"]
    assert full["limits"]["max_files"] == 64


@pytest.mark.parametrize("datatype", ["BYTES", "UINT8"])
def test_inference_gives_the_same_scores(serve: Serve, export_folder: Path, datatype: str) -> None:
    client, files = serve(), camera_files(3)
    if datatype == "BYTES":
        data: object = [*(base64.b64encode(each).decode() for _, each in files), "no base64!"]
        shape = [4]
    else:
        pixels = np.stack([image.pixels for image in named(files)])
        data, shape = pixels.tolist(), list(pixels.shape)
    tensor = {"name": "images", "datatype": datatype, "shape": shape, "data": data}
    answer = client.post(f"/v2/models/{NAME}/infer", json={"id": "one", "inputs": [tensor]})
    assert answer.status_code == 200
    outputs = {each["name"]: each["data"] for each in answer.json()["outputs"]}
    wanted = discopatch.load(export_folder).predict(named(files))
    assert outputs["score"][:3] == wanted.scores.tolist()
    assert outputs["p_value"][:3] == wanted.p_values.tolist()
    assert outputs["is_ood"][:3] == wanted.is_ood.tolist()
    assert outputs["error"][:3] == ["", "", ""]
    assert answer.json()["id"] == "one"
    if datatype == "BYTES":
        assert outputs["score"][3] is None
        assert outputs["error"][3].startswith("unreadable")


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        "{}",
        '{"inputs": []}',
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}',
        '{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], "data": ["eA=="]}]}',
        '{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": [1]}]}',
        '{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 1, 1, 3], "data": [1, 2, 256]}]}',
        '{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 1, 1, 3], "data": [1, [2], 3]}]}',
        '{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [9, 999999999, 9999999999, 3], "data": [1]}]}',
        '{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 1, 1, 3], "data": [1e400, 1, 1]}]}',
    ],
)
def test_what_is_no_inference_request_is_a_problem(serve: Serve, body: str) -> None:
    answer = serve().post(f"/v2/models/{NAME}/infer", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"] == answer.json()["detail"]


def test_health_and_models_are_those_of_the_protocol(serve: Serve) -> None:
    client = serve()
    assert client.get("/v2/health/live").status_code == client.get("/v2/health/ready").status_code == 200
    assert client.get(f"/v2/models/{NAME}/ready").json() == {"name": NAME, "ready": True}
    assert {each["name"] for each in client.get(f"/v2/models/{NAME}").json()["outputs"]} >= {"score", "p_value"}
    assert client.get("/v2").json()["name"] == "discopatch"
    assert client.get("/v2/models/other/ready").status_code == 404
