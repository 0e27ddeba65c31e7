"""A detector as bytes, for workers on machines that do not see the file it was saved to."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Self

from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_LIMITS, DEFAULT_WORKERS, Decoder, Limits
from discopatch.utils import require

if TYPE_CHECKING:
    from discopatch.detector import Detector
    from discopatch.export.runtime import Runtime

FILE = "detector.safetensors"  # the name of a detector's one file while it is unpacked


class Loaded(NamedTuple):
    """A detector that is ready to score, by one thread at a time."""

    predictor: "Detector | Runtime"
    cores: int  # threads that decode and, on a CPU, compute
    lock: Lock


@dataclass(frozen=True)
class LoadSettings:
    """How a worker loads a detector; without `cores` it takes what the process has, such as OMP_NUM_THREADS says."""

    weights: tuple[str, ...] = ()  # where networks from outside lie, such as dinov2=FOLDER
    device: str = "auto"
    batch_size: int = 8
    decoder: Decoder | None = None  # as the detector was fitted, unless given
    cores: int | None = None
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.cores is not None and self.cores < 1:
            raise ParameterError(f"cores is {self.cores}: give at least 1, or None for all")

    def load(self, path: Path) -> Loaded:
        """The detector in a file, or the export in a folder; sets how many threads torch has in this process."""
        if path.is_dir():
            from discopatch.export.runtime import Runtime

            limits = self.limits
            runtime = Runtime.load(path, threads=self.cores, max_pixels=limits.max_pixels, max_bytes=limits.max_bytes)
            return Loaded(runtime, self.cores or DEFAULT_WORKERS, Lock())
        require("torch")
        import torch

        from discopatch.detector import Detector

        if self.cores is not None:
            torch.set_num_threads(self.cores)
        detector = Detector.load(
            path,
            weights=self.weights,
            device=self.device,
            batch_size=self.batch_size,
            decoder=self.decoder,
            max_pixels=self.limits.max_pixels,
            max_bytes=self.limits.max_bytes,
        )
        return Loaded(detector, self.cores or torch.get_num_threads(), Lock())


@dataclass(frozen=True)
class PackedDetector:
    """The file of a saved detector, or all files of an export; equal where the bytes are."""

    digest: str
    files: dict[str, bytes] = field(compare=False, repr=False)  # by name; a saved detector has FILE alone

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """What `Detector.save` wrote to a file, or `Detector.export` to a folder."""
        path = Path(path)
        if not path.is_dir():
            return cls._of({FILE: path.read_bytes()})
        found = sorted(each for each in path.rglob("*") if each.is_file())
        return cls._of({each.relative_to(path).as_posix(): each.read_bytes() for each in found})

    @classmethod
    def save(cls, detector: "Detector") -> Self:
        """A fitted detector in memory, as `Detector.save` would write it."""
        with TemporaryDirectory(prefix="discopatch-") as folder:
            detector.save(Path(folder) / FILE)
            return cls.read(Path(folder) / FILE)

    @classmethod
    def _of(cls, files: dict[str, bytes]) -> Self:
        digest = hashlib.sha256()
        for name, content in files.items():
            digest.update(f"{len(name)} {name} {len(content)} ".encode())
            digest.update(content)
        return cls(digest.hexdigest(), files)

    def load(self, settings: LoadSettings) -> Loaded:
        """Unpacks it to a folder that is gone once the detector is in memory."""
        with TemporaryDirectory(prefix="discopatch-", ignore_cleanup_errors=True) as folder:
            for name, content in self.files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            return settings.load(Path(folder, FILE) if self.files.keys() == {FILE} else Path(folder))
