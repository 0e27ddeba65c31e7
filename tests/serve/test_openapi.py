"""The service keeps to its OpenAPI document, whatever it is asked."""

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok

from tests.serve.conftest import Serve
from tests.serve.samples import NAME, running

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENDLESS = "/v1/detectors/{name}/events"
EXAMPLES = 25  # of each address


@pytest.mark.slow
def test_answers_are_those_of_the_document(export_folder: Path, tmp_path: Path) -> None:
    with running(tmp_path, export_folder, "--no-history") as service:
        schema = schemathesis.openapi.from_url(f"{service.address}/openapi.json").exclude(path=ENDLESS)
        asked = 0
        for operation in schema.get_all_operations():
            assert isinstance(operation, Ok)
            found = operation.ok()

            @given(case=found.as_strategy())
            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            def ask(case: Any) -> None:
                if "name" in case.path_parameters:
                    case.path_parameters["name"] = NAME
                case.call_and_validate(checks=CHECKS)

            ask()
            asked += 1
        assert asked == 17
        assert not [line for line in service.lines() if line["level"] == "error"]


def test_every_address_describes_its_errors(serve: Serve) -> None:
    document = serve().get("/openapi.json").json()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len(operations) == 18
    for operation in operations:
        assert operation["summary"]
        for status, answer in operation["responses"].items():
            assert answer["description"]
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"]
