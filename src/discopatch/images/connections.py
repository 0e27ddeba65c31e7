"""How a store is reached through `pyarrow.fs`: the options of each scheme, credentials from the environment, bounds."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

from discopatch.errors import ParameterError

Given: TypeAlias = tuple[tuple[str, str], ...]  # options as they stand in a URI

_RETRIES, _CONNECT_SECONDS, _REQUEST_SECONDS = 3, 10.0, 30.0
_TOKEN_LIFE = timedelta(hours=1)  # pyarrow asks until when a token of Google's is valid; the store itself knows


def _flag(text: str) -> bool:
    if text.lower() not in ("1", "true", "0", "false"):
        raise ValueError
    return text.lower() in ("1", "true")


_TEXTS = ("access_key", "secret_key", "session_token", "region", "scheme", "endpoint_override", "role_arn")
OPTIONS: dict[str, dict[str, Callable[[str], Any]]] = {
    "s3": {
        **dict.fromkeys((*_TEXTS, "session_name", "external_id", "tls_ca_file_path"), str),
        **dict.fromkeys(("request_timeout", "connect_timeout"), float),
        **dict.fromkeys(("anonymous", "force_virtual_addressing", "allow_bucket_creation"), _flag),
    },
    "gs": {
        **dict.fromkeys(("access_token", "target_service_account", "scheme", "endpoint_override", "project_id"), str),
        "retry_limit_seconds": float,
        "anonymous": _flag,
    },
    "az": dict.fromkeys(
        (
            *("account_name", "account_key", "sas_token", "tenant_id", "client_id", "client_secret"),
            *("blob_storage_authority", "dfs_storage_authority", "blob_storage_scheme", "dfs_storage_scheme"),
        ),
        str,
    ),
}
BY_PYARROW = ("abfs", "abfss", "hdfs", "viewfs")  # schemes whose URIs pyarrow takes apart itself
_AZURE_ACCOUNT = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_AZURE_KEYS = {
    "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"),
    "sas_token": ("AZURE_STORAGE_SAS_TOKEN",),
}
_AZURE_CREDENTIALS = {*_AZURE_KEYS, "tenant_id", "client_id", "client_secret"}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_LANCE_OPTIONS = {
    "access_key": "aws_access_key_id",
    "secret_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "region": "aws_region",
    "anonymous": "aws_skip_signature",
    "force_virtual_addressing": "aws_virtual_hosted_style_request",
}


def read_option(scheme: str, name: str, value: str) -> Any:
    """The value of an option, of the type that it has; ParameterError, without the value, for one of another type."""
    try:
        return OPTIONS[scheme][name](value) if scheme in OPTIONS else value
    except ValueError:
        detail = "has a value that is none of its kind: give a number, or true or false"
        raise ParameterError(f"the option {name} of {scheme}:// {detail}") from None


def connect(scheme: str, host: str, given: Given) -> tuple[Any, str]:
    """The pyarrow file system, the same for all who ask for it, and where in it the paths of the store begin.

    Any error means that there is none; its text may hold what is secret.
    """
    return _connected(scheme, host, given, _from_environment(_ENDPOINTS))


@lru_cache(maxsize=64)
def _connected(scheme: str, host: str, given: Given, endpoint: str | None) -> tuple[Any, str]:
    from pyarrow import fs

    if scheme in BY_PYARROW:
        query = "&".join(f"{name}={quote(value)}" for name, value in given)
        system, start = fs.FileSystem.from_uri(f"{scheme}://{host}/{'?' * bool(query)}{query}")
        return system, start
    options = {name: read_option(scheme, name, value) for name, value in given}
    if scheme == "s3":
        return fs.S3FileSystem(**_s3_options(options, host, endpoint)), host
    if scheme == "gs":
        seconds = options.pop("retry_limit_seconds", 2 * _REQUEST_SECONDS)
        if "access_token" in options:
            options["credential_token_expiration"] = datetime.now(UTC) + _TOKEN_LIFE
        return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=seconds), **options), host
    return fs.AzureFileSystem(**_azure_options(options)), host


def lance_options(scheme: str, given: Given) -> dict[str, str]:
    """The same options by the names that Lance, which has connections of its own, knows for S3."""
    if scheme != "s3":
        return {}
    options = {_LANCE_OPTIONS[name]: value for name, value in given if name in _LANCE_OPTIONS}
    endpoint, http = _endpoint(dict(given), _from_environment(_ENDPOINTS))
    if endpoint is not None:
        options |= {"aws_endpoint": f"{http}://{endpoint}", "allow_http": str(http == "http").lower()}
        options.setdefault("aws_region", _from_environment(("AWS_REGION", "AWS_DEFAULT_REGION")) or "us-east-1")
    return {"connect_timeout": f"{_CONNECT_SECONDS}s", "client_max_retries": str(_RETRIES), **options}


def _s3_options(given: Mapping[str, Any], bucket: str, from_environment: str | None) -> dict[str, Any]:
    """The options of pyarrow's S3FileSystem, with bounds on how long and how often it tries."""
    from pyarrow import fs

    options = {"connect_timeout": _CONNECT_SECONDS, "request_timeout": _REQUEST_SECONDS, **given}
    endpoint, http = _endpoint(given, from_environment)
    if endpoint is not None:
        options |= {"endpoint_override": endpoint, "scheme": http}
    elif not (given.get("region") or _from_environment(("AWS_REGION", "AWS_DEFAULT_REGION"))):
        options["region"] = fs.resolve_s3_region(bucket)
    options["retry_strategy"] = fs.AwsStandardS3RetryStrategy(max_attempts=_RETRIES)
    return options


def _endpoint(given: Mapping[str, Any], from_environment: str | None) -> tuple[str | None, str]:
    """Host and port of an endpoint that is not Amazon's, with the scheme to speak to it, as a URL or without one."""
    text = given.get("endpoint_override") or from_environment
    if not text or "://" not in text:
        return text or None, given.get("scheme", "https")
    taken = urlsplit(text)
    return taken.netloc + taken.path.rstrip("/"), given.get("scheme", taken.scheme)


def _azure_options(given: Mapping[str, Any]) -> dict[str, Any]:
    account = given.get("account_name") or _from_environment(_AZURE_ACCOUNT)
    if account is None:
        raise ParameterError("az:// needs an account: set AZURE_STORAGE_ACCOUNT_NAME, or add ?account_name=...")
    options = {**given, "account_name": account}
    if not given.keys() & _AZURE_CREDENTIALS:
        found = ((name, _from_environment(variables)) for name, variables in _AZURE_KEYS.items())
        options |= dict([pair for pair in found if pair[1] is not None][:1])
    return options


def _from_environment(variables: Sequence[str]) -> str | None:
    return next(filter(None, map(os.environ.get, variables)), None)
