"""The code blocks of each page, run one after the other in a folder as a reader would have it."""

import io
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import discopatch
from discopatch.cli import main
from tests.docs.blocks import Block, blocks_of, pages
from tests.images.s3 import Bucket, s3_bucket

FIRST = ["README.md", "docs/tutorial.md"]
OTHERS = [page for page in pages() if page not in FIRST and any(block.is_run for block in blocks_of(page))]
PASSED = (0, 3)  # 3: a folder test that fails
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.mark.slow
@pytest.mark.parametrize("page", FIRST)
def test_the_first_pages_run(page: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, prepared, tmp_path, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("page", OTHERS)
def test_every_page_runs(page: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, prepared, tmp_path, monkeypatch)


def run_page(page: str, prepared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page != "docs/tutorial.md":  # which makes its own folders
        shutil.copytree(prepared, folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    blocks, names, printed = blocks_of(page), {"__name__": "page"}, ""
    with ExitStack() as stack:
        bucket = stack.enter_context(bucket_of(prepared)) if "s3://" in str(blocks) else None
        for block in blocks:
            if block.printed:
                assert_alike(printed, block.text)
            elif block.is_run:
                printed = run_block(block, names, bucket, stack)


def run_block(block: Block, names: dict[str, object], bucket: Bucket | None, stack: ExitStack) -> str:
    """The output of the block."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the folders are small
        if "127.0.0.1:8080" in block.text and "serve" not in names and "serve" not in block.text:
            start(["serve", "camera-3.safetensors"], names, stack)
        text = block.text.replace("127.0.0.1:8080", f"127.0.0.1:{names.get('serve')}")
        if block.language == "python":
            exec(compile(text, block.page, "exec"), names)
        for words in block.commands():
            if words[0] in ("pip", "make"):
                continue
            if words[:2] == ["discopatch", "serve"]:
                start(words[1:], names, stack)
            elif words[:2] == ["discopatch", "watch"]:
                run_command([*words, "--once", "--settle", "0"], bucket)
            elif words[0] == "discopatch":
                run_command(words, bucket)
            else:
                line = shlex.join(words).replace("127.0.0.1:8080", f"127.0.0.1:{names.get('serve')}")
                print(subprocess.run(line, shell=True, check=True, capture_output=True, text=True, timeout=300).stdout)
    return output.getvalue()


def run_command(words: list[str], bucket: Bucket | None) -> None:
    """Runs it in this process, after the removal of an output that it would not replace."""
    if words[1] in ("fit", "export") and "-o" in words:
        output = Path(words[words.index("-o") + 1])
        shutil.rmtree(output) if output.is_dir() else output.unlink(missing_ok=True)
    given = [bucket.uri(each.removeprefix("s3://bucket/")) if bucket and "s3://" in each else each for each in words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code in PASSED, words


def start(words: list[str], names: dict[str, object], stack: ExitStack) -> None:
    """Starts a service on a free port until the end of the page."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        names["serve"] = port = free.getsockname()[1]
    source = {**os.environ, "PYTHONPATH": str(Path(discopatch.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-m", "discopatch", *words, "--port", str(port)], env=source)
    stack.callback(process.wait, 60)
    stack.callback(process.send_signal, signal.SIGTERM)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=60).close()
            return
        except OSError:
            assert process.poll() is None, words
            time.sleep(0.2)
    raise AssertionError(words)


@contextmanager
def bucket_of(prepared: Path) -> Iterator[Bucket]:
    with s3_bucket("bucket") as bucket:
        for folder, name in (("incoming", "incoming"), ("incoming", "photos"), ("shards", "shards")):
            bucket.put_folder(prepared / folder, name)
        yield bucket


def assert_alike(printed: str, expected: str) -> None:
    """The same words, and numbers up to the differences between processors."""
    texts = [" ".join(text.split()) for text in (printed, expected)]
    assert NUMBER.sub("#", texts[0]) == NUMBER.sub("#", texts[1])
    pairs = zip(*(map(float, NUMBER.findall(text)) for text in texts), strict=True)
    assert all(math.isclose(one, other, rel_tol=0.02, abs_tol=0.011) for one, other in pairs), texts
