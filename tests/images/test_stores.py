"""Images in object stores: the same as in a folder, and clear errors where the store does not answer as it should."""

import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from discopatch.errors import MissingExtraError, NoImagesError, ParameterError, StoreError
from discopatch.images import (
    DEFAULT_LIMITS,
    Limits,
    NamedImage,
    Processes,
    Refusal,
    RefusalReason,
    Transform,
    check_single,
    count_images,
    open_cache,
    read_images,
)
from discopatch.images.items import Item, Shard
from discopatch.images.source import list_source
from discopatch.images.stores import StorePath, is_uri, parse, resolve, without_options

from .s3 import KEYS, Bucket, s3_bucket
from .samples import as_bytes, encoded, names_of, noise, photo, read, read_one
from .test_source import write_shard

PATHS = ["a.png", "b-c/e.png", "b/d.png", "b/deep/f.png", "z.png"]
SECRET = "s3://bucket/photos?access_key=public&secret_key=hidden"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_bucket() as bucket:
        yield bucket


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bucket: Bucket) -> Path:
    """Five images here and in the bucket, and much that is none."""
    top = tmp_path_factory.mktemp("folder")
    for number, name in enumerate(PATHS):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(encoded(noise(seed=number), "PNG"))
    for name in ("notes.txt", ".hidden.png", "b/labels.json", ".cache/x.png"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_bytes(b"no image")
    bucket.put_folder(top, "folder")
    return top


def test_a_folder_of_a_store_gives_what_a_folder_here_gives(bucket: Bucket, folder: Path) -> None:
    here, there = as_bytes(read_images(folder)), as_bytes(read_images(bucket.uri("folder/")))
    assert [each[1] for each in there] == [each[1] for each in here]  # type: ignore[index]
    names = [Path(name).relative_to(folder) for name in names_of(read(folder))]
    assert names_of(read(bucket.uri("folder"))) == [bucket.shown(f"folder/{name}") for name in names]


@pytest.mark.parametrize("pattern", ["**/*.png", "*.png", "b*/*.png", "**/deep/*", "b/**/*", "*/[de].png", "**"])
def test_patterns_find_in_a_store_what_they_find_here(bucket: Bucket, folder: Path, pattern: str) -> None:
    here = [str(Path(name).relative_to(folder)) for name in names_of(read(f"{folder}/{pattern}"))]
    assert names_of(read(bucket.uri(f"folder/{pattern}"))) == [bucket.shown(f"folder/{name}") for name in here]
    assert here


@pytest.mark.parametrize("workers", [1, 4, Processes(2)])
def test_threads_and_processes_open_what_is_in_a_store_themselves(bucket: Bucket, folder: Path, workers: int) -> None:
    source = [bucket.uri("folder"), bucket.uri("folder/nowhere.png"), folder / "a.png"]
    stream = as_bytes(read_images(source, workers=workers, transform=Transform(32)))
    assert len(stream) == 7
    assert isinstance(stream[5], Refusal)
    assert stream == as_bytes(read_images(source, workers=3, transform=Transform(32)))


def test_a_file_of_a_store_is_one_image_whatever_its_name(bucket: Bucket) -> None:
    for key in ("upload", "with space #1 [x] 100%.png", "q?.png"):
        found = read_one(bucket.put(f"one/{key}", encoded(photo(), "PNG")))
        assert isinstance(found, NamedImage)
        assert found.name == bucket.shown(f"one/{key}")
        assert np.array_equal(found.pixels, photo())


@pytest.mark.parametrize(("name", "mode"), [("s.tar", "w"), ("s.tar.gz", "w:gz")])
def test_a_shard_of_a_store_is_read_as_a_stream(bucket: Bucket, tmp_path: Path, name: str, mode: str) -> None:
    members = {f"{number:02}.png": encoded(noise(seed=number), "PNG") for number in range(20)}
    shard = write_shard(tmp_path / name, {**members, "big.json": b"x" * 3_000_000, "last.png": members["00.png"]}, mode)
    uri = bucket.put(f"shards/{name}", shard.read_bytes())
    here, there = read(shard), read(uri)
    assert names_of(there) == [bucket.shown(f"shards/{name}/{member}") for member in [*members, "last.png"]]
    for one, other in zip(here, there, strict=True):
        assert isinstance(one, NamedImage)
        assert isinstance(other, NamedImage)
        assert np.array_equal(one.pixels, other.pixels)


def test_a_damaged_shard_of_a_store_is_refused_and_what_came_before_stays(bucket: Bucket, tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {f"{n}.png": encoded(noise(seed=n), "PNG") for n in range(10)})
    *before, last = read(bucket.put("shards/cut.tar", shard.read_bytes()[: shard.stat().st_size // 2]))
    assert 2 <= len(before) <= 8
    assert isinstance(last, Refusal)
    assert (last.name, last.reason) == (bucket.shown("shards/cut.tar"), RefusalReason.TRUNCATED)


def test_what_is_too_large_is_refused_unread(bucket: Bucket) -> None:
    uri = bucket.put("large/a.png", b"\0" * 50_000)
    refusal = read_one(uri, Limits(max_bytes=20_000))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is RefusalReason.TOO_LARGE


def test_entries_of_a_store_are_small_and_say_when_they_changed(bucket: Bucket, tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.png": encoded(photo(), "PNG")})
    uri = bucket.put("changing/s.tar", shard.read_bytes())
    (before,) = list_source(uri).entries(DEFAULT_LIMITS)
    assert isinstance(before, Shard)
    assert before.stamp[0] == shard.stat().st_size
    assert pickle.loads(pickle.dumps(before)) == before
    assert names_of(read(before)) == names_of(read(uri))
    bucket.put("changing/s.tar", shard.read_bytes() + b"\0" * 512)
    (after,) = list_source(uri).entries(DEFAULT_LIMITS)
    assert isinstance(after, Shard)
    assert after.stamp != before.stamp


def test_the_cache_knows_files_of_a_store_again(bucket: Bucket, folder: Path, tmp_path: Path) -> None:
    first = open_cache(bucket.uri("folder"), Transform(32), tmp_path)
    again = open_cache(bucket.uri("folder"), Transform(32), tmp_path)
    assert first.digest == again.digest == open_cache(folder, Transform(32), tmp_path).digest
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


def test_the_endpoint_may_come_from_the_environment(
    bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = dict(pair.split("=", 1) for pair in bucket.options.split("&"))["endpoint_override"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{endpoint}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert len(read(f"s3://{bucket.name}/folder")) == 5


def test_nothing_there_is_told_from_no_bucket(bucket: Bucket) -> None:
    for path in ("nowhere", "nowhere/*.png", "nowhere.tar", "photos.parquet#image"):
        with pytest.raises(NoImagesError):
            read(bucket.uri(path))
    with pytest.raises(StoreError, match="bucket"):
        read(f"s3://no-such-bucket/a?{bucket.options}")
    (refusal,) = read([f"s3://no-such-bucket/a?{bucket.options}"])
    assert isinstance(refusal, Refusal)
    assert refusal.name == "s3://no-such-bucket/a"


class Denied(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(403)
        self.end_headers()
        self.wfile.write(b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>" * (self.command == "GET"))

    do_HEAD = do_GET  # noqa: N815 - the name is the library's

    def log_message(self, *_: object) -> None:
        pass


def test_a_store_that_denies_access_says_which_credentials_to_check() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Denied) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{server.server_port}"
        uri = f"s3://photos/a.png?endpoint_override={place}&scheme=http&region=x&access_key=a&secret_key=hidden"
        with pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID") as caught:
            read(uri)
        server.shutdown()
    assert "hidden" not in str(caught.value)


def test_a_store_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        waits = "connect_timeout=0.5&request_timeout=0.5"
        with pytest.raises(StoreError, match="endpoint"):
            read(f"s3://photos/a?endpoint_override={place}&scheme=http&region=x&{waits}&access_key=a&secret_key=b")


def test_an_endpoint_that_ends_midway_gives_refusals_and_no_hang() -> None:
    with s3_bucket("ending") as bucket:
        for number in range(6):
            bucket.put(f"folder/{number}.png", encoded(noise(seed=number), "PNG"))
        stream = read_images(bucket.uri("folder"), workers=1)
        assert isinstance(next(stream), NamedImage)
        bucket.server.stop()
        rest = list(stream)
    assert len(rest) == 5
    assert {item.reason for item in rest if isinstance(item, Refusal)} == {RefusalReason.UNREADABLE}


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_a_shard_whose_endpoint_ends_midway_is_refused_and_what_came_before_stays(tmp_path: Path, kind: str) -> None:
    data = encoded(photo(), "PNG") + np.random.default_rng(0).bytes(1_000_000)
    if kind == "tar":
        shard = write_shard(tmp_path / "s.tar", {f"{number}.png": data for number in range(30)})
    else:
        shard = tmp_path / "s.parquet"
        parquet.write_table(pyarrow.table({"image": [data] * 30}), shard, use_dictionary=False, row_group_size=2)
    with s3_bucket("ending") as bucket:
        bucket.put(shard.name, shard.read_bytes())
        stream = read_images(bucket.uri(shard.name), workers=1)
        first = next(stream)
        assert isinstance(first, NamedImage)
        bucket.server.stop()
        *before, last = stream
    assert len(before) < 29
    assert isinstance(last, Refusal)
    assert (last.name, last.reason) == (f"s3://ending/{shard.name}", RefusalReason.UNREADABLE)


def test_keys_are_in_no_name_and_no_error(bucket: Bucket, folder: Path) -> None:
    stream = read([bucket.uri("folder"), bucket.uri("folder/nowhere"), f"s3://none/x?{bucket.options}"])
    said = [repr(item) for item in stream] + [repr(entry) for entry in list_source(bucket.uri("folder")).entries(Limits())]
    for source in (
        bucket.uri("nowhere"),
        f"s3://none/x?{bucket.options}",
        f"{SECRET}&unknown=hidden",
        "ftp://a?x=hidden",
    ):
        with pytest.raises((NoImagesError, StoreError, ParameterError)) as caught:
            read(source)
        said.append(str(caught.value))
    with pytest.raises(ParameterError) as caught_single:
        check_single(f"s3://bucket/a.tar?secret_key={KEYS[1]}")
    said.append(str(caught_single.value))
    assert not [text for text in said if KEYS[1] in text or "hidden" in text]


def test_a_uri_is_taken_apart_as_it_is_written() -> None:
    place = parse("s3://key:sec%2Fret@bucket/a b/c%20d.png?region=x&endpoint_override=http%3A%2F%2Flocal:9")
    assert isinstance(place, StorePath)
    assert str(place) == "s3://bucket/a b/c%20d.png"
    assert dict(place.store.options) == {
        "access_key": "key",
        "secret_key": "sec/ret",
        "region": "x",
        "endpoint_override": "http://local:9",
    }
    assert parse("file:///tmp/a%20b.png") == Path("/tmp/a b.png")
    assert without_options(SECRET) == "s3://bucket/photos"
    assert without_options("s3://key:secret@bucket/img_?.png?region=x") == "s3://bucket/img_?.png"
    assert without_options("s3://bucket/a?region=x&secret_key=with?mark&scheme=http") == "s3://bucket/a"
    assert without_options("photos/what?a=b") == "photos/what?a=b"
    assert not is_uri("photos/s3://x")


@pytest.mark.parametrize(
    "uri", ["s3:///a.png", "http://a/b.png", "s3://b/a?request_timeout=soon", "s3://b/a?nothing=1", "file://host/a.png"]
)
def test_a_uri_that_is_not_understood_is_an_error_with_the_remedy(uri: str) -> None:
    with pytest.raises(ParameterError, match=": "):
        read(uri)
    assert isinstance(read_one([uri]), Refusal)


def test_other_stores_are_reached_through_pyarrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sig=x")
    for uri, kind, path in (
        ("gs://anonymous@bucket/a/b", "gcs", "bucket/a/b"),
        ("gs://bucket/a?anonymous=true&retry_limit_seconds=1", "gcs", "bucket/a"),
        ("az://container/a", "abfs", "container/a"),
        ("abfss://container@account.dfs.core.windows.net/a/b", "abfs", "container/a/b"),
        (f"file://{tmp_path}", "local", str(tmp_path)),
        (str(tmp_path), "local", str(tmp_path)),
    ):
        system, inside = resolve(uri)
        assert (system.type_name, inside) == (kind, path)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(ParameterError, match="account_name"):
        resolve("az://other/a")


def test_a_file_uri_is_a_path(folder: Path) -> None:
    assert names_of(read(folder.as_uri())) == names_of(read(folder))


def test_a_store_hides_how_many_images_it_has(bucket: Bucket) -> None:
    assert count_images(bucket.uri("folder")) is None


def test_one_image_of_a_store_may_be_explained_and_a_folder_not(bucket: Bucket) -> None:
    check_single(bucket.uri("folder/a.png"))
    for uri in ("folder/", "s.tar", "t.parquet", "t.parquet#image", "t.lance"):
        with pytest.raises(ParameterError):
            check_single(bucket.uri(uri))


def test_without_pyarrow_all_else_is_read_and_a_store_says_what_to_install(folder: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from discopatch.errors import MissingExtraError\n"
        "from discopatch.images import read_images\n"
        f"print(len(list(read_images({str(folder)!r}, workers=1))))\n"
        f"open({str(folder / 'b' / 'labels.parquet')!r}, 'w').close()\n"
        f"print(len(list(read_images({str(folder)!r}, workers=1))))\n"
        "for source in ('s3://bucket/a', " + repr(str(folder / "b" / "labels.parquet")) + "):\n"
        "    try:\n"
        "        read_images(source)\n"
        "    except MissingExtraError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (folder / "b" / "labels.parquet").unlink()
    remedy = "pyarrow is not installed: pip install 'discopatch[parquet]'"
    assert done.stdout.splitlines() == ["5", "5", remedy, remedy]
    assert MissingExtraError.__name__ not in done.stderr


def test_pyarrow_is_not_imported_before_it_is_needed(folder: Path) -> None:
    code = f"import sys; from discopatch.images import read_images; list(read_images({str(folder)!r})); "
    code += "sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_item_of_a_store_is_pickled_without_its_content(bucket: Bucket, folder: Path) -> None:
    entries = list(list_source(bucket.uri("folder")).entries(Limits()))
    assert len(pickle.dumps(entries)) < 3000
    assert all(isinstance(entry, Item) and isinstance(entry.content, StorePath) for entry in entries)
