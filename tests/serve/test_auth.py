"""Tokens: several, of two headers, read anew; pages of other origins only by leave."""

from pathlib import Path

import pytest

from discopatch.errors import ParameterError
from discopatch.serve.auth import Tokens
from tests.serve.conftest import Serve
from tests.serve.samples import SCORE, camera_files, form

FIRST, SECOND = "a" * 32, "b" * 32


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# two of them\n{FIRST}\n\n  {SECOND}\n")
    path.chmod(0o600)
    return path


def test_every_address_but_the_page_and_health_needs_a_token(serve: Serve, token_file: Path) -> None:
    client = serve(token_file=token_file)
    for path in ("/v1/detectors", "/metrics", "/openapi.json", "/v2", "/nothing", SCORE):
        answer = client.get(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/problem+json"
    for path in ("/", "/v2/health/live", "/v2/health/ready"):
        assert client.get(path).status_code == 200
    assert client.post(SCORE, files=form(camera_files(1))).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": f"Bearer {FIRST}"}, 200),
        ({"Authorization": f"bearer  {SECOND} "}, 200),
        ({"X-API-Key": SECOND}, 200),
        ({"X-API-Key": SECOND, "Authorization": "Basic x"}, 200),
        ({"Authorization": f"Basic {FIRST}"}, 401),
        ({"Authorization": FIRST}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"X-API-Key": ""}, 401),
        ({"X-API-Key": FIRST[:-1]}, 401),
        ({"X-API-Key": "# two of them"}, 401),
        ({"X-API-Key": "\xe4" * 32}, 401),
    ],
)
def test_a_token_is_taken_from_two_headers(
    serve: Serve, token_file: Path, headers: dict[str, str], status: int
) -> None:
    client = serve(token_file=token_file)
    encoded = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    assert client.get("/v1/detectors", headers=encoded).status_code == status


def test_a_reload_reads_the_tokens_anew_or_keeps_the_old(serve: Serve, token_file: Path) -> None:
    client = serve(token_file=token_file)
    old, new = {"X-API-Key": FIRST}, {"X-API-Key": "c" * 32}
    token_file.write_text("c" * 32)
    assert client.get("/v1/detectors", headers=new).status_code == 401
    assert client.post("/v1/reload", headers=old).status_code == 200
    assert client.get("/v1/detectors", headers=old).status_code == 401
    token_file.write_text("# none\n")
    refused = client.post("/v1/reload", headers=new)
    assert refused.status_code == 422
    assert str(token_file) in refused.json()["detail"]
    assert client.get("/v1/detectors", headers=new).status_code == 200


@pytest.mark.parametrize("content", [b"", b"# x\n", b"a b\n", "ä".encode(), b"\xff\xfe", b"x" * 2**21])
def test_a_file_without_proper_tokens_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(ParameterError):
        Tokens.read(path)
    with pytest.raises(ParameterError):
        Tokens.read(tmp_path / "nothing")


def test_a_file_that_others_can_read_is_warned_of(token_file: Path) -> None:
    assert Tokens.read(token_file)[1] == []
    token_file.chmod(0o644)
    (warning,) = Tokens.read(token_file)[1]
    assert f"chmod 600 {token_file}" in warning
    token_file.write_text("short\n")
    assert len(Tokens.read(token_file)[1]) == 2


def test_an_open_address_without_tokens_is_warned_of(serve: Serve) -> None:
    lines: list[str] = []
    serve(host="0.0.0.0", log=lambda level, event, **fields: lines.append(f"{level} {event} {fields}"))
    assert any(line.startswith("warning tokens") and "--token-file" in line for line in lines)


def test_pages_of_other_origins_call_only_by_leave(serve: Serve) -> None:
    origin, files = "https://factory.example", form(camera_files(1))
    plain = serve()
    assert "access-control-allow-origin" not in plain.get("/v1/detectors", headers={"Origin": origin}).headers
    assert plain.post(SCORE, files=files, headers={"Origin": origin}).status_code == 403
    assert plain.post(SCORE, files=files, headers={"Origin": "http://127.0.0.1"}).status_code == 200
    client = serve(cors=(origin,))
    asked = client.options(SCORE, headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
    assert asked.headers["access-control-allow-origin"] == origin
    answer = client.post(SCORE, files=files, headers={"Origin": origin})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    other = client.get("/v1/detectors", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_a_local_service_answers_under_its_own_names(serve: Serve) -> None:
    client = serve(host_names=("proxy.example",))
    for host in ("localhost:8080", "127.0.0.1", "[::1]:8080", "proxy.example"):
        assert client.get("/v1/detectors", headers={"Host": host}).status_code == 200
    assert client.get("/v1/detectors", headers={"Host": "rebound.example"}).status_code == 403
