"""The code blocks of each page, run one after the other in a folder as a reader would have it."""

import io
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
import warnings
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import pytest

import discopatch
from discopatch.cli import main
from tests.docs.blocks import Block, blocks_of, pages
from tests.images.s3 import Bucket, s3_bucket

TUTORIAL = "docs/tutorial.md"  # makes its own folders
ADDRESS = "http://127.0.0.1:8080"  # of the service on the pages
PASSED = (0, 3)  # 3: a folder test that fails
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
PAGES = [
    pytest.param(page, marks=pytest.mark.slow if page == TUTORIAL else pytest.mark.nightly)
    for page in pages()
    if any(block.is_run for block in blocks_of(page))
]
RECIPES = [pytest.param(block, id=block.needs) for page in pages() for block in blocks_of(page) if block.needs]


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if page != TUTORIAL:
        shutil.copytree(request.getfixturevalue("prepared"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    blocks, names, printed, bucket = blocks_of(page), {"__name__": "page"}, "", None
    with ExitStack() as stack:
        if any("s3://" in block.text for block in blocks if block.is_run):
            bucket = stack.enter_context(s3_bucket("bucket"))
            for folder, name in (("incoming", "incoming"), ("incoming", "photos"), ("shards", "shards")):
                bucket.put_folder(tmp_path / folder, name)
        for block in blocks:
            if block.comment == "printed":  # the output of the block before it
                assert_alike(printed, block.text)
            elif block.is_run:
                printed = run_block(block, names, bucket, stack)


@pytest.mark.nightly
@pytest.mark.parametrize("block", RECIPES)
def test_a_recipe_runs_where_its_program_is_installed(
    block: Block, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(block.needs) is None:
        pytest.skip(f"{block.needs} is not installed")
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    names = {"__name__": "page"}
    with ExitStack() as stack:
        if ADDRESS in block.text:
            names["address"] = start(["serve", "camera-3.safetensors"], stack)
        run_block(block, names, None, stack)


def run_block(block: Block, names: dict[str, str], bucket: Bucket | None, stack: ExitStack) -> str:
    """The output of the block."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the folders are small
        if block.language == "python":
            exec(compile(block.text.replace(ADDRESS, names.get("address", "")), block.page, "exec"), names)
        for words in block.commands():
            if words[:2] == ["discopatch", "serve"]:
                names["address"] = start(words[1:], stack)
            elif words[:2] == ["discopatch", "watch"]:
                run_command([*words, "--once"], bucket)
            elif words[0] == "discopatch":
                run_command(words, bucket)
            elif words[0] not in ("pip", "make"):
                line = shlex.join(words).replace(ADDRESS, names.get("address", ""))
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


def start(words: list[str], stack: ExitStack) -> str:
    """The address of a service on a free port, which ends with the page."""
    environment = {**os.environ, "PYTHONPATH": str(Path(discopatch.__file__).parents[1])}
    command = [sys.executable, "-m", "discopatch", *words, "--port", "0"]
    process = stack.enter_context(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    stack.callback(process.send_signal, signal.SIGTERM)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    urllib.request.urlopen(f"{address}/v2/health/ready", timeout=60).close()
    return address


def assert_alike(printed: str, expected: str) -> None:
    """The same words, and numbers up to the differences between processors."""
    texts = [" ".join(text.split()) for text in (printed, expected)]
    assert NUMBER.sub("#", texts[0]) == NUMBER.sub("#", texts[1])
    pairs = zip(*(map(float, NUMBER.findall(text)) for text in texts), strict=True)
    assert all(math.isclose(one, other, rel_tol=0.02, abs_tol=0.011) for one, other in pairs), texts
