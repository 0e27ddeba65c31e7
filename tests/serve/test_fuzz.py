"""The service answers as its OpenAPI document says, and its memory stays bounded, whatever it receives."""

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

from tests.serve.samples import NAME, running

pytestmark = pytest.mark.nightly
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def test_answers_are_those_of_the_document(export_folder: Path, tmp_path: Path) -> None:
    with running(tmp_path, f"{NAME}={export_folder}", "--no-history") as service:
        schema = schemathesis.openapi.from_url(f"{service.address}/openapi.json")
        operations = list(schema.exclude(path="/v1/detectors/{name}/events").get_all_operations())
        assert len(operations) == 17
        for operation in operations:
            assert isinstance(operation, Ok)

            @given(case=operation.ok().as_strategy())
            @settings(
                max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
            )
            def ask(case: Any) -> None:
                if "name" in case.path_parameters:
                    case.path_parameters["name"] = NAME
                case.call_and_validate(checks=CHECKS)

            ask()
        assert not service.lines("unexpected")
