"""The fast pass for scoring: images come to the GPU and results leave it while other images pass."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.errors import ParameterError
from discopatch.images import Pixels
from discopatch.images.tensors import to_unit
from discopatch.model.discriminator import Discriminator
from discopatch.model.fast.inverted_network import FastInverted
from discopatch.model.fast.network import FastNetwork, PatchLayout, Stages
from discopatch.model.fast.residual_network import Describe, FastResidual
from discopatch.model.patches import extract_patches
from discopatch.utils import prefetch

MAX_RECORDED = 8  # batch sizes; each holds no memory but its images and its results
WARM_UP = 3  # runs before a recording
TOLERANCE = 0.05  # of the kernels against the plain pass; rounding in bfloat16 stays well below
COPIERS = 3  # threads that copy images of one batch: each manages about 10 GB/s
MANY = 2**22  # bytes of a batch from which on they are worth waking

T = TypeVar("T")
Network = FastNetwork | FastResidual | FastInverted
Arrays = dict[str, NDArray[Any]]  # features by their kind, as `FeatureArrays` has them
Later = Callable[[], Arrays]


class FastPass:
    """Images in uint8 to logits and statistics, by the stages of `network.py`; of residual networks to more than these.

    corners: where each image is cut, (patches, 2); none for one pass over the whole image.
    batch_size: how many images `start` takes at the most; fewer pass with room left over, so that no score depends on
    how many came along. On a GPU the pass is recorded as a CUDA graph when it is first needed, for each batch size.
    search: cuDNN tries which convolution is fastest, and may choose another in another process.
    stages: the kernels, unless given; they are compared with the plain pass first, and ArithmeticError is raised where
    they disagree.
    pooled: also the means of the last map. places: also what this function makes of the maps of all layers; it must do
    without copies from ordinary memory. Both are for residual networks alone, inverted or not.
    """

    def __init__(
        self,
        discriminator: Discriminator,
        corners: Tensor | None,
        *,
        size: int,
        dtype: torch.dtype = torch.bfloat16,
        batch_size: int = 8,
        search: bool = False,
        stages: Stages | None = None,
        pooled: bool = False,
        places: Describe | None = None,
    ) -> None:
        self.device = next(discriminator.parameters()).device
        self.batch_size, self.size, self.search = batch_size, size, search
        patch = discriminator.architecture.patch_size
        self.layout = PatchLayout.at(corners, patch=patch, size=size, device=self.device)
        self.network: Network
        if discriminator.architecture.kind == "residual":
            self.network = FastResidual.of(discriminator, dtype, places)
        elif discriminator.architecture.kind == "inverted":
            self.network = FastInverted.of(discriminator, dtype, places)
        elif pooled or places is not None:
            raise ParameterError("the fast pass of a plain network gives logits and statistics alone")
        else:
            self.network = FastNetwork.of(discriminator, dtype)
        self._pooled = None if not pooled or isinstance(self.network, FastNetwork) else self.network.pooled
        self._recorded: dict[int, Recorded[tuple[Tensor, ...]]] = {}
        self._slots: list[Slot] = []
        with current_gpu(self.device):
            self.stages = stages or checked_kernels(discriminator, self.network, self.layout)
            self._streams = Streams(self.device) if self.device.type == "cuda" else None

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """(B, size, size, 3) in uint8 on the device to logits (B, positions), statistics (B, 2 x channels), ..."""
        with current_gpu(self.device):
            return self._by_kind(self.run(images) if self._streams is None else self._replayed(images, self._streams))

    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        """The pass itself, stage by stage, nothing recorded: (B, statistics and logits), and places if wanted."""
        return self.network.run(images, self.layout, self.stages)

    def stream(self, batches: Iterable[Pixels]) -> Iterator[Arrays]:
        """The result of each batch, in order; the next one is on its way before one is waited for."""
        return (later() for later in prefetch(map(self.start, batches), 1))

    @torch.inference_mode()
    def start(self, pixels: Pixels | Tensor) -> Later:
        """Sends up to `batch_size` images on their way; calling what is returned, once, waits for their result.

        A tensor is of images that are on the device already, for the current stream.
        """
        if len(pixels) > self.batch_size:
            raise ParameterError(f"{len(pixels)} images at once: send at most {self.batch_size}")
        if self._streams is None:
            return partial(self._arrays, self.run(pixels if isinstance(pixels, Tensor) else torch.from_numpy(pixels)))
        with current_gpu(self.device), self._streams.lock:
            recorded = self._recording(self.batch_size, self._streams)
            slot = self._slots.pop() if self._slots else Slot(recorded, self._streams)
            if isinstance(pixels, Tensor):
                self._streams.upload.wait_stream(torch.cuda.current_stream())
                pixels.record_stream(self._streams.upload)
                self._send(slot, pixels, recorded, self._streams)
            else:
                copy_images(slot.pixels[: len(pixels)], pixels, self._streams.copiers)
                self._send(slot, slot.images, recorded, self._streams)
        return partial(self._wait, slot, len(pixels))

    def _send(self, slot: "Slot", images: Tensor, recorded: "Recorded[tuple[Tensor, ...]]", streams: "Streams") -> None:
        with torch.cuda.stream(streams.upload):
            slot.given[: len(images)].copy_(images, non_blocking=True)
            slot.arrived.record()
        with torch.cuda.stream(streams.compute):
            slot.arrived.wait()
            recorded.given.copy_(slot.given)
            for out, result in zip(slot.out, recorded.replay(), strict=True):
                out.copy_(result)
            slot.passed.record()
        with torch.cuda.stream(streams.download):
            slot.passed.wait()
            for result, out in zip(slot.results, slot.out, strict=True):
                result.copy_(out, non_blocking=True)
            slot.left.record()

    def _wait(self, slot: "Slot", count: int) -> Arrays:
        slot.left.synchronize()
        found = self._arrays([each[:count] for each in slot.results])
        self._slots.append(slot)
        return found

    def _arrays(self, results: Sequence[Tensor]) -> Arrays:
        return {kind: values.numpy().copy() for kind, values in self._by_kind(results).items()}

    def _by_kind(self, results: Sequence[Tensor]) -> dict[str, Tensor]:
        rows, *places = results
        end = 2 * self.network.channels
        found = {"logits": rows[:, end:], "statistics": rows[:, :end]}
        if self._pooled is not None:
            found["pooled"] = rows[:, self._pooled]
        return {**found, "places": places[0]} if places else found

    def _replayed(self, images: Tensor, streams: "Streams") -> list[Tensor]:
        current = torch.cuda.current_stream()
        with streams.lock:
            recorded = self._recording(len(images), streams)
            streams.compute.wait_stream(current)
            with torch.cuda.stream(streams.compute):
                recorded.given.copy_(images)
                results = [each.clone() for each in recorded.replay()]
        current.wait_stream(streams.compute)
        for each in results:
            each.record_stream(current)
        return results

    def _recording(self, batch: int, streams: "Streams") -> "Recorded[tuple[Tensor, ...]]":
        if batch not in self._recorded:
            if len(self._recorded) >= MAX_RECORDED:
                del self._recorded[next(iter(self._recorded))]
            given = torch.zeros(batch, self.size, self.size, 3, dtype=torch.uint8, device=self.device)
            self._recorded[batch] = Recorded(
                self.run, given, stream=streams.compute, pool=streams.pool, search=self.search
            )
        return self._recorded[batch]


class Streams:
    """What the batches on a GPU share: a stream each for upload, computation and download, and threads that copy."""

    def __init__(self, device: torch.device) -> None:
        self.upload, self.compute, self.download = (torch.cuda.Stream(device) for _ in range(3))
        self.pool = torch.cuda.graph_pool_handle()
        self.lock = Lock()
        self.copiers = ThreadPoolExecutor(COPIERS)


class Slot:
    """Room for one batch on its way, pinned at both ends: only such memory is copied while something else runs."""

    def __init__(self, recorded: "Recorded[tuple[Tensor, ...]]", streams: Streams) -> None:
        self.images = torch.empty(recorded.given.shape, dtype=torch.uint8, pin_memory=True)
        self.pixels = self.images.numpy()
        self.given = torch.empty_like(recorded.given)
        self.out = [torch.empty_like(each) for each in recorded.result]
        self.results = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in recorded.result]
        self.arrived, self.passed, self.left = (torch.cuda.Event() for _ in range(3))
        for stream in (streams.upload, streams.compute, streams.download):
            # The memory may have been another's a moment ago, and the slot may be dropped while it is on its way.
            stream.wait_stream(torch.cuda.current_stream())
            for each in (self.given, *self.out):
                each.record_stream(stream)


class Recorded(Generic[T]):
    """A function of one tensor as a CUDA graph: copy into `given`, replay, and `result` is there, all on one stream.

    Recorded once and replayed, because for one image a launch takes longer than what it launches.
    """

    def __init__(
        self,
        function: Callable[[Tensor], T],
        given: Tensor,
        *,
        stream: torch.cuda.Stream,
        pool: Any,
        search: bool = False,
    ) -> None:
        self.given, self._function = given, function  # whose tensors the graph goes on reading
        given.record_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with cudnn_choice(search=search):
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    function(given)
            # Other threads may decode images meanwhile, and pin memory for them.
            with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self.result = function(given)

    def replay(self) -> T:
        """The result, on the current stream; it is overwritten by the next replay."""
        self._graph.replay()
        return self.result


def copy_images(target: Pixels, source: Pixels, threads: ThreadPoolExecutor) -> None:
    """Copies images, many of them in threads; torch would copy in its own, which wait for those that decode."""
    if source.nbytes < MANY:
        target[:] = source
        return
    parts = zip(np.array_split(target, COPIERS), np.array_split(source, COPIERS), strict=True)
    for copied in [threads.submit(np.copyto, *part) for part in parts]:
        copied.result()


@contextmanager
def cudnn_choice(*, search: bool) -> Iterator[None]:
    """Convolutions by the algorithm that cuDNN chooses untried, the same in every process, or the fastest by trial."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = search, not search
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


def current_gpu(device: torch.device) -> torch.cuda.device:
    """Kernels are launched on the current GPU, which need not be the one that the tensors are on."""
    return torch.cuda.device(device if device.type == "cuda" else -1)


def checked_kernels(discriminator: Discriminator, network: Network, layout: PatchLayout) -> Stages:
    from discopatch.model.fast.launch import Kernels  # needs Triton, which is there on a GPU alone

    kernels = Kernels()
    check_agreement(discriminator, network, layout, kernels)
    return kernels


@torch.inference_mode()
def check_agreement(discriminator: Discriminator, network: Network, layout: PatchLayout, stages: Stages) -> None:
    """Raises ArithmeticError unless the stages agree with the plain pass, on noise and where contrast is low."""
    noise = torch.randint(
        256, (layout.size, layout.size, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    images = torch.stack((noise, 200 + noise // 16)).to(layout.corners.device)
    patches = to_unit(extract_patches(images, layout.corners.long(), layout.patch))
    plain = discriminator(patches, layout.patches, statistics=True)
    rows, *places = network.run(images, layout, stages)
    channels = 2 * network.channels
    compared = {
        "statistics": (rows[:, :channels], plain.statistics),
        "logits": (rows[:, channels:], plain.logits.reshape(len(images), -1)),
    }
    if not isinstance(network, FastNetwork) and network.describe is not None:
        compared["places"] = places[0].float(), network.describe(plain.features).float()
    for name, (found, expected) in compared.items():
        difference = float((found - expected).norm() / expected.norm())
        if not difference < TOLERANCE:
            raise ArithmeticError(f"the {name} are {difference:.2g} away from those of the plain pass")
