"""Fast passes of the discriminator on a GPU: `FastPass` for scoring, `fuse` for training.

The plain pass of `layers.py` writes and reads every activation several times, and the first convolution, whose three
channels leave the matrix units idle, writes the largest one. In scoring

- the first layer is a linear map of 27 numbers: its mean and variance over an image follow exactly from the moments of
  these numbers, before it is computed; then it is computed, normalised and activated in one pass;
- the others are torch's convolution without its bias, one pass for both sums, one to normalise and activate in place;
- the last normalisation happens on the way into the classifier and is never written.

Inverted networks have no dense convolutions: their kernels compute in half precision, with bias, ReLU6 and the residual
sum on the way out. Images are uploaded and results downloaded while other images pass.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.errors import ParameterError
from discopatch.images import Pixels
from discopatch.images.tensors import to_unit
from discopatch.model.discriminator import Discriminator
from discopatch.model.kernels.fused import fuse
from discopatch.model.kernels.layout import Describe, FastInverted, FastPlain, PatchLayout
from discopatch.model.patches import extract_patches
from discopatch.utils import prefetch

if TYPE_CHECKING:
    from discopatch.model.kernels.launch import Kernels

__all__ = ["FastPass", "Recorded", "fuse"]

WARM_UP = 3  # runs before a recording
TOLERANCE = 0.05  # of the kernels against the plain pass; rounding in bfloat16 stays well below
COPIERS = 3  # threads that copy images of one batch: each manages about 10 GB/s
MANY = 2**22  # bytes of a batch from which on threads copy it

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]  # features by their kind, as `FeatureArrays` has them
Later = Callable[[], Arrays]


class FastPass:
    """Images in uint8 to logits and statistics; of inverted networks also to pooled features and places.

    corners: patches of each image, (patches, 2); none for one pass over the whole image.
    batch_size: most images of one `start`. Fewer pass in a batch of the same size, so that no score depends on their
    number. On a GPU the pass is recorded as a CUDA graph on first use.
    stages: the Triton kernels by default, which are first compared with the plain pass: ArithmeticError if they differ.
    pooled: adds the means of the last map. places: adds the result of this function of the maps of all layers, which
    may not copy from ordinary memory.
    """

    def __init__(
        self,
        discriminator: Discriminator,
        corners: Tensor | None,
        *,
        size: int,
        dtype: torch.dtype = torch.bfloat16,
        batch_size: int = 8,
        stages: "Kernels | None" = None,
        pooled: bool = False,
        places: Describe | None = None,
    ) -> None:
        self.device = next(discriminator.parameters()).device
        self.batch_size, self.size = batch_size, size
        patch = discriminator.architecture.patch_size
        self.layout = PatchLayout.at(corners, patch=patch, size=size, device=self.device)
        self._pooled: slice | None = None
        self.network: FastPlain | FastInverted
        if discriminator.architecture.kind == "inverted":
            self.network = FastInverted.of(discriminator, dtype, places)
            self._pooled = self.network.pooled if pooled else None
        elif pooled or places is not None:
            raise ParameterError("the fast pass of a plain network gives logits and statistics alone")
        else:
            self.network = FastPlain.of(discriminator, dtype)
        self._slots: list[Slot] = []
        with current_gpu(self.device):
            if stages is None:
                from discopatch.model.kernels.launch import Kernels  # needs Triton

                stages = Kernels()
                check_agreement(discriminator, self.network, self.layout, stages)
            self.stages = stages
            self._gpu = Gpu(self.device, self.run) if self.device.type == "cuda" else None

    @torch.inference_mode()
    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, size, size, 3) in uint8 on the device to rows of statistics and logits, and the places, if wanted."""
        return self.network.run(images, self.layout, self.stages)

    def stream(self, batches: Iterable[Pixels]) -> Iterator[Arrays]:
        """Result of each batch, in order; the next batch is started before a result is awaited."""
        return (later() for later in prefetch(map(self.start, batches), 1))

    @torch.inference_mode()
    def start(self, pixels: Pixels | Tensor) -> Later:
        """Starts up to `batch_size` images; a call of the returned function, once, waits for their result.

        A tensor holds images that are on the device already, for the current stream.
        """
        if len(pixels) > self.batch_size:
            raise ParameterError(f"{len(pixels)} images at once: send at most {self.batch_size}")
        if self._gpu is None:
            return partial(self._arrays, self.run(pixels if isinstance(pixels, Tensor) else torch.from_numpy(pixels)))
        with current_gpu(self.device), self._gpu.lock:
            recorded = self._gpu.recording((self.batch_size, self.size, self.size, 3))
            slot = self._slots.pop() if self._slots else Slot(recorded, self._gpu)
            images = slot.images
            if isinstance(pixels, Tensor):
                images = pixels
                self._gpu.upload.wait_stream(torch.cuda.current_stream())
                images.record_stream(self._gpu.upload)
            else:
                copy_images(slot.pixels[: len(pixels)], pixels, self._gpu.copiers)
            slot.send(images, recorded, self._gpu)
        return partial(self._wait, slot, len(pixels))

    def _wait(self, slot: "Slot", count: int) -> Arrays:
        slot.left.synchronize()
        found = self._arrays([each[:count] for each in slot.results])
        self._slots.append(slot)
        return found

    def _arrays(self, results: Sequence[Tensor]) -> Arrays:
        rows, *places = (each.numpy() for each in results)
        end = 2 * self.network.channels
        found = {"logits": rows[:, end:], "statistics": rows[:, :end]}
        if self._pooled is not None:
            found["pooled"] = rows[:, self._pooled]
        if places:
            found["places"] = places[0]
        return {kind: values.copy() for kind, values in found.items()}


class Gpu:
    """State of a GPU that batches share: streams for upload, computation and download, threads that copy, a graph."""

    def __init__(self, device: torch.device, function: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        self.upload, self.compute, self.download = (torch.cuda.Stream(device) for _ in range(3))
        self.lock = Lock()
        self.copiers = ThreadPoolExecutor(COPIERS)
        self._device, self._function = device, function
        self._recorded: Recorded[tuple[Tensor, ...]] | None = None

    def recording(self, shape: tuple[int, ...]) -> "Recorded[tuple[Tensor, ...]]":
        """The recorded pass, for images of that shape."""
        if self._recorded is None:
            given = torch.zeros(shape, dtype=torch.uint8, device=self._device)
            self._recorded = Recorded(self._function, given, stream=self.compute)
        return self._recorded


class Slot:
    """Memory for one batch in flight, pinned at both ends: only pinned memory is copied asynchronously."""

    def __init__(self, recorded: "Recorded[tuple[Tensor, ...]]", gpu: Gpu) -> None:
        self.images = torch.empty(recorded.given.shape, dtype=torch.uint8, pin_memory=True)
        self.pixels = self.images.numpy()
        self.given = torch.empty_like(recorded.given)
        self.out = [torch.empty_like(each) for each in recorded.result]
        self.results = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in recorded.result]
        self.arrived, self.passed, self.left = (torch.cuda.Event() for _ in range(3))
        for stream in (gpu.upload, gpu.compute, gpu.download):
            # The memory may have had another use just before, and the slot may be dropped while it is in flight.
            stream.wait_stream(torch.cuda.current_stream())
            for each in (self.given, *self.out):
                each.record_stream(stream)

    def send(self, images: Tensor, recorded: "Recorded[tuple[Tensor, ...]]", gpu: Gpu) -> None:
        """Enqueues upload, computation and download."""
        with torch.cuda.stream(gpu.upload):
            self.given[: len(images)].copy_(images, non_blocking=True)
            self.arrived.record()
        with torch.cuda.stream(gpu.compute):
            self.arrived.wait()
            recorded.given.copy_(self.given)
            for out, result in zip(self.out, recorded.replay(), strict=True):
                out.copy_(result)
            self.passed.record()
        with torch.cuda.stream(gpu.download):
            self.passed.wait()
            for result, out in zip(self.results, self.out, strict=True):
                result.copy_(out, non_blocking=True)
            self.left.record()


class Recorded(Generic[T]):
    """A function of one tensor as a CUDA graph: copy into `given`, replay, and read `result`, all on one stream.

    Recorded once and replayed, because for one image a launch takes longer than the launched work. With `search` cuDNN
    tries which convolution is fastest, and may choose another in another process.
    """

    def __init__(
        self, function: Callable[[Tensor], T], given: Tensor, *, stream: torch.cuda.Stream, search: bool = False
    ) -> None:
        self.given, self._function = given, function  # the graph goes on reading the function's tensors
        given.record_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with cudnn_choice(search=search):
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    function(given)
            # Other threads may decode images meanwhile, and pin memory for them.
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self.result = function(given)

    def replay(self) -> T:
        """The result, on the current stream; the next replay overwrites it."""
        self._graph.replay()
        return self.result


def copy_images(target: Pixels, source: Pixels, threads: ThreadPoolExecutor) -> None:
    """Copies images, many of them in threads; torch's own threads may be busy decoding."""
    if source.nbytes < MANY:
        target[:] = source
        return
    parts = zip(np.array_split(target, COPIERS), np.array_split(source, COPIERS), strict=True)
    for copied in [threads.submit(np.copyto, *part) for part in parts]:
        copied.result()


@contextmanager
def cudnn_choice(*, search: bool) -> Iterator[None]:
    """Convolutions by cuDNN's default algorithm, the same in every process, or by the fastest of a search."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = search, not search
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


def current_gpu(device: torch.device) -> torch.cuda.device:
    """Context in which `device` is the current GPU, on which kernels are launched."""
    return torch.cuda.device(device if device.type == "cuda" else -1)


@torch.inference_mode()
def check_agreement(
    discriminator: Discriminator, network: FastPlain | FastInverted, layout: PatchLayout, stages: "Kernels"
) -> None:
    """Raises ArithmeticError unless the stages agree with the plain pass, on noise and at low contrast."""
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
    if network.describe is not None:
        compared["places"] = places[0].float(), network.describe(plain.features).float()
    for name, (found, expected) in compared.items():
        difference = float((found - expected).norm() / expected.norm())
        if not difference < TOLERANCE:
            raise ArithmeticError(f"the {name} are {difference:.2g} away from those of the plain pass")
