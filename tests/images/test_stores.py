"""Object stores: what a folder here gives, a folder of a store gives too; secrets are shown nowhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from discopatch.errors import DiscopatchError, ParameterError
from discopatch.images import Limits, NamedImage, Processes, Refusal, Transform, list_source, open_cache, read_images
from discopatch.images.stores import parse, without_options

from .s3 import KEYS, Bucket, s3_bucket
from .samples import as_bytes, encoded, names_of, noise, read, refusal_of
from .test_tar import numbered, write_shard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for name in ("b.png", "a/c d.png", "a/deep/é#1.png", ".hidden/x.png", "a/notes.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(noise(seed=len(name)), "PNG"))
    write_shard(folder / "s.tar", numbered(3))
    return folder


@pytest.fixture(scope="module")
def bucket(folder: Path) -> Iterator[Bucket]:
    with s3_bucket() as bucket:
        bucket.put_folder(folder, "folder")
        yield bucket


@pytest.mark.parametrize("path", ["", "/*.png", "/**/*.png", "/s.tar", "/a/deep/é#1.png"])
def test_a_store_gives_what_a_folder_here_gives(bucket: Bucket, folder: Path, path: str) -> None:
    found, expected = read(bucket.uri(f"folder{path}")), read(f"{folder}{path}")
    assert names_of(found) == [name.replace(str(folder), bucket.shown("folder")) for name in names_of(expected)]
    assert [pixels for _, pixels in as_bytes(iter(found))] == [pixels for _, pixels in as_bytes(iter(expected))]  # type: ignore[misc]


def test_processes_and_caches_read_stores(bucket: Bucket, tmp_path: Path) -> None:
    uri = bucket.uri("folder")
    assert as_bytes(read_images(uri, workers=Processes(2))) == as_bytes(read_images(uri, workers=1))
    assert open_cache(uri, Transform(32), tmp_path).digest == open_cache(uri, Transform(32), tmp_path).digest
    source = list_source(uri)
    assert source.count is None  # the shard hides it
    assert list_source(bucket.uri("folder/a")).count == 2


def test_damaged_and_large_files_of_a_store_are_refusals(bucket: Bucket, folder: Path) -> None:
    whole = (folder / "s.tar").read_bytes()
    *before, last = read(bucket.put("damaged.tar", whole[: len(whole) // 2]))
    assert before
    assert isinstance(last, Refusal)
    assert refusal_of(bucket.uri("folder/b.png"), Limits(max_bytes=100)).reason == "too_large"
    assert refusal_of([bucket.uri("folder/nothing.png")]).reason == "missing"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("us-east-1", "us-east-1&secret_key=hidden"),
        ("@photos", "@nowhere"),
        pytest.param("127.0.0.1", "127.0.0.9", marks=pytest.mark.slow),
    ],
)
def test_secrets_are_in_no_name_and_no_error(bucket: Bucket, old: str, new: str) -> None:
    uri = bucket.uri("folder").replace(old, new)
    with pytest.raises(DiscopatchError) as error:
        read(uri)
    refused = refusal_of([uri])
    for text in (str(error.value), refused.error, refused.name):
        assert not any(secret in text for secret in (*KEYS, "secret%2Fof", "hidden"))


@pytest.mark.slow
def test_an_endpoint_that_ends_midway_gives_refusals_and_no_hang(folder: Path) -> None:
    with s3_bucket("ending") as bucket:
        uri = bucket.put_folder(folder, "folder")
        stream = read_images(uri, workers=1)
        assert isinstance(next(stream), NamedImage)
        bucket.server.stop()
        rest = list(stream)
    assert len(rest) == 3
    assert all(isinstance(item, Refusal) and item.reason == "unreadable" for item in rest)


def test_a_uri_is_taken_apart_as_it_is_written(tmp_path: Path) -> None:
    for uri, shown in (
        ("s3://key:secret@bucket/a b%20?c/#1.png?region=x&scheme=http", "s3://bucket/a b%20?c/#1.png"),
        (
            "abfss://container:password@account.dfs.core.windows.net/a",
            "abfss://container@account.dfs.core.windows.net/a",
        ),
        ("hdfs://user:password@host:8020/a/", "hdfs://user@host:8020/a"),
    ):
        assert str(parse(uri)) == shown
        assert without_options(uri).rstrip("/") == shown
    assert parse(tmp_path.as_uri()) == tmp_path
    for uri in ("s3:///a.png", "http://a/b.png", "file://host/a.png"):
        with pytest.raises(ParameterError):
            read(uri)
