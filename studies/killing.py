"""Commands that are killed: started as processes, killed at a moment, what is left looked at, and run again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from PIL import Image
from safetensors import safe_open

import discopatch
from discopatch.batch import read_scores
from discopatch.images.samples import crops, sample_photos
from discopatch.model import Architecture, Networks, Weights, read_safetensors
from discopatch.training.checkpoint import RunFolder

PATIENCE = 600  # seconds for a run to end by itself
COMMANDS = ("fit", "score --report", "score --out", "export", "train", "bench")
OUTPUT = "output"  # the folder that a command writes to, beside those of its temporary files and its cache
TINY = Architecture(patch_size=32, hidden=(8, 16), latent=8)
PRINTED, CHANGES = "printed.txt", "changes.txt"
LONGEST_DELAY = 0.005  # seconds between a change of files and the kill
IMPORTS = 5  # seconds, about, that a fresh process takes to import the libraries
Content = dict[str, bytes]  # files by their path


class Commands(AbstractContextManager["Commands"]):
    """Starts commands by forking a process that has used the libraries before: all that is killed is their work."""

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.kill()
        self._server.communicate()

    def start(self, arguments: Sequence[object], root: Path, kill: "KillAt | None" = None) -> "Command":
        return ForkedCommand(self._server, list(map(str, arguments)), root, kill)


class KillAt(NamedTuple):
    """The moment of a kill: some seconds after the command began to change files for the n-th time."""

    change: int
    delay: float


class Command:
    """A command in a process group of its own, whose temporary files and cache are in folders of its own."""

    pid: int

    def wait(self) -> int:
        """The status, negative for the signal that ended it."""
        raise NotImplementedError

    def kill_after(self, seconds: float) -> bool:
        """Whether the kill ended it, with all processes that it started; it may have ended before."""
        time.sleep(seconds)
        try:
            os.killpg(self.pid, signal.SIGKILL)  # it is waited for below: the number is its own until then
        except ProcessLookupError:  # it has just been forked, and leads no group yet
            os.kill(self.pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL


class FreshCommand(Command):
    """Started as a user starts it, with the imports."""

    def __init__(self, arguments: Sequence[object], root: Path) -> None:
        with (root / PRINTED).open("wb") as printed:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "discopatch", *map(str, arguments)],
                env={**os.environ, **environment(root)},
                stdout=printed,
                stderr=printed,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait(self) -> int:
        return self._process.wait(PATIENCE)


class ForkedCommand(Command):
    """A child of the server, which waits for it when it is told to."""

    def __init__(self, server: "subprocess.Popen[str]", arguments: list[str], root: Path, kill: KillAt | None) -> None:
        self._server = server
        self.pid = int(self._ask({"arguments": arguments, "root": str(root), "kill": kill}))

    def wait(self) -> int:
        return int(self._ask({"wait": self.pid}))

    def _ask(self, question: Mapping[str, object]) -> str:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return self._server.stdout.readline()


def environment(root: Path) -> dict[str, str]:
    folders = {name: root / name for name in ("temporary", "cache")}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    return {
        "TMPDIR": str(folders["temporary"]),
        "XDG_CACHE_HOME": str(folders["cache"]),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folders["cache"] / "torch"),
    }


def serve() -> None:
    """Forks a process for each command that comes in a line of JSON, and answers with its number."""
    import discopatch.bench.runner
    import discopatch.cli
    import discopatch.report

    with TemporaryDirectory() as folder:  # much is imported and prepared only when it is used
        material = Material.make(Path(folder) / "material")
        detector = discopatch.Detector(Weights.load(material.weights), false_alarm_rate=0.1, device="cpu")
        detector.fit(material.normal, workers=1).export(Path(folder) / "export")
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                become(question["arguments"], Path(question["root"]), question["kill"])
        print(answer, flush=True)


def become(arguments: list[str], root: Path, kill: Sequence[float] | None) -> None:
    """Runs the command in this process, which notes how often it changed files, and never returns."""
    os.setsid()
    os.environ.update(environment(root))
    with (root / PRINTED).open("wb") as printed, Path(os.devnull).open("rb") as nothing:
        for place, file in enumerate((nothing, printed, printed)):
            os.dup2(file.fileno(), place)
    sys.argv = ["discopatch", *arguments]
    changes = Changes(root / OUTPUT, KillAt(int(kill[0]), kill[1]) if kill else None)
    sys.addaudithook(changes)
    status = 1
    try:
        discopatch.cli.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        (root / CHANGES).write_text(str(changes.count))
        os._exit(status)


class Changes:
    """Counts what this process does to the files of a folder, and kills its process group at one of them."""

    EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod"})

    def __init__(self, folder: Path, kill: KillAt | None) -> None:
        self._folder, self._kill, self.count = str(folder), kill, 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in self.EVENTS or self._folder not in str(arguments[0]):
            return
        if event == "open" and not int(str(arguments[2])) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        self.count += 1
        if self._kill is not None and self.count == self._kill.change:
            if self._kill.delay:
                threading.Thread(target=self._kill_later, daemon=True).start()
            else:
                os.killpg(0, signal.SIGKILL)

    def _kill_later(self) -> None:
        assert self._kill is not None
        time.sleep(self._kill.delay)
        os.killpg(0, signal.SIGKILL)


class Material(NamedTuple):
    """What commands need: small images of one camera and others, random weights."""

    normal: Path
    more: Path
    new: Path
    weights: Path

    @classmethod
    def make(cls, root: Path) -> "Material":
        made = cls(root / "normal", root / "more", root / "new", root / "tiny.safetensors")
        photos = sample_photos(["temple"])
        for folder, count, seed in ((made.normal, 30, 0), (made.more, 50, 2), (made.new, 12, 1)):
            folder.mkdir(parents=True)
            for image in crops(photos, count, size=64, seed=seed):
                Image.fromarray(image.pixels).save(folder / f"{image.name}.png")
        Weights(Networks.from_seed(TINY, 0).discriminator, discopatch.Transform(size=64)).save(made.weights)
        return made


@dataclass(frozen=True)
class Case:
    """One command: how it is typed, what must be whole in its output, and what must be equal at its end."""

    arguments: Callable[[Path], list[object]]  # given the folder of the output
    older: Sequence[object]  # further arguments, with which it left what is there before
    check: Callable[[Path], None]  # raises if something in the output is not whole
    progress: Callable[[Path], int]  # how much of the output there is, which a kill must not lessen
    result: Callable[[Path], object]  # of a finished command, equal whenever it ran to its end


def cases(material: Material, detector: Path) -> dict[str, Case]:
    """Every command that writes, with the detector that some of them need."""
    quick = ("--device", "cpu", "--workers", 1)
    fit = ("fit", material.normal, "--weights", material.weights, "--false-alarm-rate", 0.1, "--force", *quick)
    score = ("score", material.new, "--detector", detector, *quick)
    export = ("export", detector, "--format", "onnx", "--force")
    train = (
        *("train", material.normal, "--preset", "tiny", "--images", 2, "--patches", 2, "--steps", 8),
        *("--checkpoint-every", 2, "--samples-every", 4, "--log-every", 1, "--accelerator", "cpu"),
    )
    bench = (
        *("bench", "--suite", "folder", "--normal", material.more, "--other", material.new, *quick, "--no-figures"),
        *("--fit-images", 30, "--test-images", 8, "--weights", material.weights, "--methods", "discopatch/*"),
        *("--protocol", "matched", "--corruption", "contrast", "--severity", 1),
    )

    def train_arguments(out: Path) -> list[object]:
        return [*train, "--out", out / "run", *(["--resume"] if (out / "run" / "run.json").exists() else [])]

    def count_files(out: Path) -> int:
        return len(visible(out))

    def names(out: Path) -> list[str]:
        return sorted(contents(out))

    return {
        "fit": Case(lambda out: [*fit, "-o", out / "detector"], ("--seed", 1), check_detector, count_files, contents),
        "score --report": Case(
            lambda out: [*score, "--report", out / "report.html"], ("--close-ups", 1), check_report, count_files, names
        ),
        "score --out": Case(
            lambda out: [*score, "--out", out / "scores", "--per-part", 4, "--features"],
            ("--rank", 1, "--world", 2),
            check_scores,
            count_files,
            contents,
        ),
        "export": Case(lambda out: [*export, "-o", out / "export"], (), check_export, count_files, names),
        "train": Case(train_arguments, ("--steps", 4), check_run, newest_step, trained),
        "bench": Case(lambda out: [*bench, "-o", out / "bench"], ("--severity", 5), check_bench, count_files, measured),
    }


def check_detector(folder: Path) -> None:
    if (folder / "detector").exists():
        discopatch.load(folder / "detector", device="cpu")


def check_report(folder: Path) -> None:
    path = folder / "report.html"
    assert not path.exists() or path.read_text(encoding="utf-8").rstrip().endswith("</html>"), path


def check_scores(folder: Path) -> None:
    if (folder / "scores" / "_manifest.json").exists():
        read_scores(folder / "scores", allow_incomplete=True).to_table()


def check_export(folder: Path) -> None:
    if (folder / "export").exists():
        discopatch.load(folder / "export")  # compares the digests of all files


def check_run(folder: Path) -> None:
    run = RunFolder(folder / "run")
    if run.description.exists():
        run.read()
    for path in run.checkpoints.newest_first():
        read_safetensors(path, kind="checkpoint")
    if run.weights.exists():
        Weights.load(run.weights)


def check_bench(folder: Path) -> None:
    for path in visible(folder):
        if path.suffix == ".safetensors":
            with safe_open(path, "numpy") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    file.get_tensor(name)
        elif path.suffix == ".json":
            json.loads(path.read_text())


def newest_step(folder: Path) -> int:
    found = RunFolder(folder / "run").checkpoints.newest_first()
    return int(found[0].stem.removeprefix("step-")) if found else 0


def trained(folder: Path) -> object:
    """The losses and every weight of the run."""
    run = RunFolder(folder / "run")
    state = Weights.load(run.weights).discriminator.state_dict()
    steps = [path.name for path in run.checkpoints.newest_first()]
    return run.losses.read_text(), {name: value.numpy().tobytes() for name, value in state.items()}, steps


def measured(folder: Path) -> object:
    results = json.loads((folder / "bench" / "results.json").read_text())
    return results["protocols"], results["data"]


def visible(folder: Path) -> list[Path]:
    """All files that are not part of something unfinished."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if not any(is_unfinished(part) for part in path.relative_to(folder).parts))


def is_unfinished(name: str) -> bool:
    return name.endswith(".partial")


def contents(folder: Path) -> Content:
    return {str(path.relative_to(folder)): path.read_bytes() for path in visible(folder)}


def unfinished(root: Path) -> list[str]:
    """The workplaces and the caches under way, wherever the command may leave them."""
    found = []
    for place, folders, files in os.walk(root):
        found += [str(Path(place, name).relative_to(root)) for name in (*folders, *files) if is_unfinished(name)]
        folders[:] = [name for name in folders if not is_unfinished(name)]
    return found


class Killed(NamedTuple):
    """What a kill left, and what the next run made of it."""

    left: int  # unfinished things
    changed: bool  # whether the output was another than before, and whole
    wrong: list[str]  # what must not be, in words


@dataclass
class Harness:
    """Kills one command again and again; each time it runs to its end afterwards."""

    commands: Commands
    case: Case
    root: Path

    def __post_init__(self) -> None:
        """Lets it run undisturbed once: for its time, its result, and an output that is there before."""
        reference, older = self.root / "reference", self.root / "older"
        began = time.monotonic()
        self._finish(reference)
        self.seconds, self.changes = time.monotonic() - began, int((reference / CHANGES).read_text())
        self._finish(older, *self.case.older)
        self.expected, self.older = self.case.result(reference / OUTPUT), older

    def _finish(self, root: Path, *further: object) -> None:
        (root / OUTPUT).mkdir(parents=True, exist_ok=True)
        status = self.commands.start([*self.case.arguments(root / OUTPUT), *further], root).wait()
        if status != 0:
            raise RuntimeError(f"status {status}: {(root / PRINTED).read_text()[-2000:]}")

    def kill(self, rng: np.random.Generator, *, writing: bool, fresh: bool = False, existing: bool = False) -> Killed:
        """Kills it at a random moment: while something is unfinished, or at any; tries again if it ended before."""
        while True:
            root = self.root / "killed"
            shutil.rmtree(root, ignore_errors=True)
            (root / OUTPUT).mkdir(parents=True)
            if existing:
                shutil.copytree(self.older, root, dirs_exist_ok=True)
            before = contents(root / OUTPUT), self.case.progress(root / OUTPUT)
            arguments = self.case.arguments(root / OUTPUT)
            if writing:
                delay = float(rng.choice([0, rng.uniform(0, LONGEST_DELAY)]))
                moment = KillAt(int(rng.integers(1, self.changes + 1)), delay)
                killed = self.commands.start(arguments, root, moment).wait() == -signal.SIGKILL
            else:
                command = FreshCommand(arguments, root) if fresh else self.commands.start(arguments, root)
                seconds = rng.uniform(0, self.seconds + fresh * IMPORTS)
                killed = command.kill_after(seconds)
                if not killed and not fresh:
                    self.seconds = min(self.seconds, seconds)  # it is quicker than it was at first
            if killed:
                return self._look(root, *before)

    def _look(self, root: Path, before: Content, progress: int) -> Killed:
        output, wrong = root / OUTPUT, []
        left, changed = len(unfinished(root)), contents(output) != before
        try:
            self.case.check(output)
        except Exception as error:
            wrong.append(f"half-written: {error}")
        if self.case.progress(output) < progress:
            wrong.append(f"lost: {progress} before, {self.case.progress(output)} after")
        try:
            self._finish(root)
        except RuntimeError as error:
            wrong.append(f"the next run failed: {error}")
        else:
            if self.case.result(output) != self.expected:
                wrong.append("the next run has another result")
        wrong += [f"not cleaned: {name}" for name in unfinished(root)]
        return Killed(left, changed, wrong)


if __name__ == "__main__":
    serve()
