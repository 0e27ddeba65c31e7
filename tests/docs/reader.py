"""A reader who tries what stands on a page: commands and Python, in a folder with the names that pages use."""

import io
import math
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from shutil import copyfile, copytree, rmtree

import pytest

import discopatch
from discopatch.cli import main
from tests.docs.blocks import ROOT, Block, blocks_of
from tests.images.s3 import Bucket

PASSED = (0, 3)  # a gate that fails has worked
PATIENCE = 120.0  # seconds until a process is ready, or has ended
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
DURATION = re.compile(r"\d+(?:\.\d+)? ?(?:ms|s|min|h|images/s)\b")
PORT = 8080  # of a service, unless another is given


class Reader:
    """Runs blocks of one page in a folder, one after the other; what serves or watches goes on until the end."""

    def __init__(self, folder: Path, bucket: Bucket, made: dict[tuple[str, ...], Path]) -> None:
        self._folder = folder
        self._bucket = bucket
        self._made = made
        self._names: dict[str, object] = {"__name__": "page"}
        self._ports: dict[int, int] = {}  # of services, by those that the page names
        self._started: list[subprocess.Popen[str]] = []

    def run(self, block: Block) -> str:
        """What the block prints, on either output."""
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            if block.language == "python":
                self._run_python(block)
            else:
                for line in block.lines():
                    self._run_command(block, line)
        return printed.getvalue()

    def end(self) -> None:
        """Ends what was started, which has to end by itself once it is asked."""
        try:
            for process in self._started:
                assert process.poll() is None, f"ended too early: {process.args!r}"
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0, process.args
        finally:
            for process in self._started:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()

    def _run_python(self, block: Block) -> None:
        text = self._with_ports(block.text)
        if script := re.match(r"# (\w+\.py)\n", text):
            Path(script[1]).write_text(text)
            subprocess.run([sys.executable, script[1]], check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
            return
        for export in re.findall(r'\.export\("([\w-]+)"\)', text):
            remove(Path(export))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of small folders, in which images are alike
            exec(compile("\n" * (block.line - 1) + text, block.page, "exec"), self._names)

    def _run_command(self, block: Block, line: str) -> None:
        words = shlex.split(line, comments=True)
        if words[0] == "pip":
            return  # see test_blocks.py: tests install nothing
        if words[0] == "make":
            subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        elif words[:2] == ["discopatch", "serve"]:
            self._serve(words)
        elif words[:2] == ["discopatch", "watch"]:
            self._watch(words)
        elif words[0] == "discopatch" and not words[1].startswith("-"):
            self._run_here(block, words)
        else:
            self._run_in_shell(block, line)

    def _run_here(self, block: Block, words: list[str]) -> None:
        """In this process, after what it would refuse to replace is gone; what another page has made is taken over."""
        output = output_of(words)
        if output:
            remove(output)
        if output and tuple(words) in self._made:
            copy(self._made[tuple(words)], output)
            return
        given = [place for word in words[1:] for place in self._expanded(word)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["discopatch", *given])
            with pytest.raises(SystemExit) as end:
                main()
        assert end.value.code in PASSED, f"{block.place}: {' '.join(words)}"
        if output:
            self._made[tuple(words)] = self._folder.parent / "made" / str(len(self._made))
            copy(output, self._made[tuple(words)])

    def _run_in_shell(self, block: Block, line: str) -> None:
        """By a shell that finds this interpreter and the commands of this checkout; studies are those of a copy."""
        programs = self._folder.parent / "programs"
        programs.mkdir(exist_ok=True)
        for name, call in (("python", ""), ("discopatch", "-m discopatch")):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
            (programs / name).chmod(0o755)
        if "studies/" in line and not Path("studies").exists():
            copytree(ROOT / "studies", "studies")
            copytree(ROOT / "docs", "docs")
        environment = self._environment(PATH=f"{programs}:{os.environ['PATH']}")
        command = ["bash", "-c", f"set -e\n{self._with_ports(line)}\ntrue"]  # not its last, so that it stays a shell
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=5 * PATIENCE)
        assert done.returncode == 0, f"{block.place}: {line}\n{done.stdout}{done.stderr}"
        assert not re.search(r'"status": ?[45]\d\d', done.stdout), done.stdout  # of a service, which curl passes on
        print(done.stdout)

    def _serve(self, words: list[str]) -> None:
        """On a free port, until it answers that it is ready."""
        port = PORT
        if "--port" in words:
            place = words.index("--port")
            port = int(words[place + 1])
            words = words[:place] + words[place + 2 :]
        process = self._start([*words[1:], "--port", "0"])
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, f"the service did not start: {words}"
        self._ports[port] = int(address.rpartition(":")[2])
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._ports[port]}/v2/health/ready", timeout=PATIENCE
        ) as answer:
            assert answer.status == 200

    def _watch(self, words: list[str]) -> None:
        """Until all that is in the folder was scored and kept."""
        database = Path(words[words.index("--database") + 1]) if "--database" in words else None
        self._start([*words[1:], "--settle", "0.1"])
        images = len(list(Path(words[2]).iterdir()))
        deadline = time.monotonic() + PATIENCE
        while kept(database or Path("home/.local/state/discopatch")) < images:
            assert time.monotonic() < deadline, "images were not kept for long"
            time.sleep(0.1)

    def _start(self, words: list[str]) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "discopatch", *words]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self._environment()
        )
        self._started.append(process)
        return process

    def _environment(self, **more: str) -> dict[str, str]:
        source = str(Path(discopatch.__file__).parents[1])
        return {**os.environ, "PYTHONPATH": os.pathsep.join([source, str(ROOT)]), **more}

    def _with_ports(self, text: str) -> str:
        """The text with the ports of services that run; one is started where the page has not."""
        if f"127.0.0.1:{PORT}" in text and PORT not in self._ports:
            self._serve(["discopatch", "serve", "camera-3"])
        for port, there in self._ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{there}")
        return text

    def _expanded(self, word: str) -> list[str]:
        """What a shell makes of a pattern; of an address in a bucket that of the one which is there."""
        if match := re.fullmatch(r"s3://bucket/(.+)", word):
            return [self._bucket.uri(match[1])]
        return sorted(map(str, Path().glob(word))) or [word] if "*" in word else [word]


@contextmanager
def reading(folder: Path, bucket: Bucket, made: dict[tuple[str, ...], Path]) -> Iterator[Reader]:
    """A reader in this folder, whose home is a folder inside it; `made` has what commands have made for others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HOME", str(folder / "home"))
        patch.delenv("XDG_STATE_HOME", raising=False)
        (folder / "home").mkdir()
        reader = Reader(folder, bucket, made)
        try:
            yield reader
        finally:
            reader.end()


def run_page(page: str, folder: Path, bucket: Bucket, made: dict[tuple[str, ...], Path]) -> None:
    """Runs the blocks of the page in the folder, and compares what they print with what the page says of it."""
    printed = ""
    with reading(folder, bucket, made) as reader:
        for block in blocks_of(page):
            if block.printed:
                assert_alike(printed, block.text)
            elif block.is_run:
                printed = reader.run(block)


def assert_alike(printed: str, expected: str) -> None:
    """The same words; numbers up to what processors differ in, and durations whatever they are."""
    texts = [DURATION.sub("TIME", " ".join(text.split())) for text in (printed, expected)]
    words, expected_words = (NUMBER.sub("#", text) for text in texts)
    assert words == expected_words
    numbers, expected_numbers = ([float(each) for each in NUMBER.findall(text)] for text in texts)
    for number, other in zip(numbers, expected_numbers, strict=True):
        assert math.isclose(number, other, rel_tol=0.02, abs_tol=0.011), texts


def output_of(words: list[str]) -> Path | None:
    """What a command makes that takes long and is the same on every page."""
    if words[1] == "fit":
        return Path(words[words.index("-o") + 1])
    if words[1] == "export":
        return Path(f"{words[2]}-onnx{'-int8' if '--int8' in words else ''}")
    return None


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        copytree(source, target)
    else:
        copyfile(source, target)


def kept(place: Path) -> int:
    """The number of predictions in this database, or in the one of this folder."""
    files = list(place.glob("*.sqlite")) if place.is_dir() else [place]
    with suppress(sqlite3.Error, IndexError):
        connection = sqlite3.connect(f"file:{files[0]}?mode=ro", uri=True)
        try:
            return int(connection.execute("SELECT count(*) FROM predictions").fetchone()[0])
        finally:
            connection.close()
    return 0


def remove(path: Path) -> None:
    if path.is_dir():
        rmtree(path)
    path.unlink(missing_ok=True)
