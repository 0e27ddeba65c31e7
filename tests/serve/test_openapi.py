"""The application keeps to its OpenAPI document, whatever it is asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from discopatch.serve.app import create_app
from discopatch.serve.settings import ServeSettings
from tests.serve.samples import NAME

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENDLESS = "/v1/detectors/{name}/events"


@pytest.fixture(scope="module")
def api(export_folder: Path) -> Iterator[schemathesis.schemas.BaseSchema]:
    app = create_app(ServeSettings(detectors={NAME: export_folder}, threads=1))
    with TestClient(app):
        schema = schemathesis.openapi.from_asgi("/openapi.json", app, base_url="http://127.0.0.1")
        yield schema.exclude(path=ENDLESS)


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_answers_are_those_of_the_document(case: schemathesis.Case) -> None:
    case.path_parameters["name"] = NAME if "name" in (case.path_parameters or {}) else None
    case.call_and_validate(checks=CHECKS, headers={"Host": "127.0.0.1"})


def test_every_address_describes_its_errors(export_folder: Path) -> None:
    app = create_app(ServeSettings(detectors={NAME: export_folder}, threads=1))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        document = client.get("/openapi.json").json()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len(operations) == 19
    for operation in operations:
        assert operation["summary"]
        for status, answer in operation["responses"].items():
            assert answer["description"]
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"]
