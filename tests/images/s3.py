"""An S3 endpoint of its own for a module of tests, and files in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyarrow.fs import FileSystem

from discopatch.images.stores import StorePath, parse

KEYS = ("key-of-a-test", "secret/of+a-test")  # with characters that keys hold


@dataclass(frozen=True)
class Bucket:
    """A bucket of a server in this process."""

    name: str
    server: Any
    options: str

    def uri(self, path: str = "") -> str:
        user = ":".join(quote(key, safe="") for key in KEYS)
        return f"s3://{user}@{self.name}/{path}?{self.options}"

    def shown(self, path: str) -> str:
        """The name of a file in results."""
        return f"s3://{self.name}/{path}"

    def put(self, path: str, data: bytes) -> str:
        place = parse(self.uri(path))
        assert isinstance(place, StorePath)
        system, inside = place.connect()
        with system.open_output_stream(inside, compression=None) as file:
            file.write(data)
        return self.uri(path)

    def put_folder(self, folder: Path, path: str) -> str:
        for file in folder.rglob("*"):
            if file.is_file():
                self.put(f"{path}/{file.relative_to(folder)}", file.read_bytes())
        return self.uri(path)


@contextmanager
def s3_bucket(name: str = "photos") -> Iterator[Bucket]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(variable, raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", KEYS[0])
        patch.setenv("AWS_SECRET_ACCESS_KEY", KEYS[1])
        from moto.server import ThreadedMotoServer

        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        _, port = server.get_host_and_port()
        options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        try:
            FileSystem.from_uri(f"s3://{name}?{options}&allow_bucket_creation=true")[0].create_dir(name)
            yield Bucket(name, server, options)
        finally:
            server.stop()
