"""Fast passes of the discriminator on a GPU: `FastPass` for scoring, `fuse` for training.

The plain pass of `layers.py` writes and reads every activation several times. The kernels add bias, ReLU6 and the
residual sum on the way out. `programs.py` has the kernels and launches them; tests replace it by plain torch.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from discopatch.images import Pixels
from discopatch.images.tensors import to_unit
from discopatch.model.kernels.fused import ALIGNED, TAPS, fuse
from discopatch.model.layers import InvertedLayer, MBConv, SameConv2d
from discopatch.model.networks import Discriminator
from discopatch.model.patches import extract_patches
from discopatch.utils import prefetch

__all__ = ["FastPass", "Recorded", "fuse", "nearest_kernel"]

WINDOW = 3 * TAPS
LEVELS, PIXEL_SCALE = 255, 256  # the stem takes a pixel k as (2 k - 255) / 256, which is exact in half precision
FEW = 16  # input channels up to which an expansion is computed again for each tap rather than written and read

WARM_UP = 3  # runs before a recording
TOLERANCE = 0.05  # of the kernels against the plain pass; rounding in bfloat16 stays well below
COPIERS = 3  # threads that copy images of one batch: each manages about 10 GB/s
MANY = 2**22  # bytes of a batch from which on threads copy it

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]  # features by their kind, as `FeatureArrays` has them
Output = Callable[..., tuple[Tensor, Tensor]]  # features by kind -> scores (B,) and components (B, components)
Describe = Callable[[list[Tensor]], Tensor]  # maps of all layers, (B, C, H, W) each -> something of each image


class FastPass:
    """Images in uint8 to logits, statistics, pooled features and places, by an inverted network.

    corners: patches of each image, (patches, 2); none for one pass over the whole image.
    batch_size: most images of one `start`; fewer pass in a batch of the same size, so that no score depends on their
    number.
    stages: the Triton kernels by default. They are compared with the plain pass: ArithmeticError if they differ.
    pooled: adds the means of the last map. tones: adds the result of this function of the images. places: adds that of
    this function of the maps of all layers. Neither may copy from ordinary memory.
    """

    def __init__(
        self,
        discriminator: Discriminator,
        corners: Tensor | None,
        *,
        size: int,
        dtype: torch.dtype = torch.bfloat16,
        batch_size: int = 8,
        stages: Any = None,
        pooled: bool = False,
        tones: Callable[[Tensor], Tensor] | None = None,
        places: Describe | None = None,
    ) -> None:
        if stages is None:
            from discopatch.model.kernels import programs as stages  # needs Triton
        self.architecture, self.pooled, self.tones = discriminator.architecture, pooled, tones
        self.output: Output | None = None
        device = next(discriminator.parameters()).device
        self.places = places is not None
        on_gpu, patch = device.type == "cuda", size if corners is None else self.architecture.patch_size
        corners = torch.zeros(1, 2) if corners is None else corners
        self.layout = PatchLayout(corners.to(device, torch.int32).contiguous(), patch, size)
        self.network = FastInverted(discriminator, dtype, stages, places)
        with torch.cuda.device(device if on_gpu else -1):  # kernels are launched on the current GPU
            self._check(discriminator)
        self._images = torch.zeros(batch_size, size, size, 3, dtype=torch.uint8, device=device)
        self._pipeline = self._record()

    def _record(self) -> "Pipeline | None":
        if self._images.device.type != "cuda":
            return None
        with torch.cuda.device(self._images.device):
            return Pipeline(self.run, self._images, self._arrays)

    def score_by(self, output: Output) -> None:
        """Adds scores to all results, by a function that may not copy from ordinary memory."""
        self.output, self._pipeline = output, None  # the memory of the old recording is free before the new one
        self._pipeline = self._record()

    @torch.inference_mode()
    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, size, size, 3) in uint8 on the device to rows of statistics and logits, places and scores, if wanted."""
        rows, *places = self.network.run(images.contiguous(), self.layout)
        found = rows, *([] if self.tones is None else [self.tones(images)]), *places
        if self.output is None:
            return found
        score, components = self.output(**self._kinds(*found))
        return *found, torch.cat((score[:, None], components), 1)

    def stream(self, batches: Iterable[Pixels]) -> Iterator[Arrays]:
        """Result of each batch, in order; the next batch is started before a result is awaited."""
        return (later() for later in prefetch(map(self.start, batches), 1))

    def start(self, pixels: Pixels | Tensor) -> Callable[[], Arrays]:
        """Starts up to `batch_size` images; a call of the returned function, once, waits for their result.

        A tensor holds images that are on the device already, for the current stream.
        """
        if self._pipeline is not None:
            return self._pipeline.start(pixels)
        results = self.run(pixels if isinstance(pixels, Tensor) else torch.from_numpy(pixels))
        return lambda: self._arrays(*results)

    def _kinds(self, rows: Tensor, *others: Tensor) -> dict[str, Tensor]:
        statistics, logits = rows.tensor_split([self.architecture.statistics], dim=1)
        found = {"logits": logits, "statistics": statistics}
        if self.pooled:
            start = 2 * sum(self.architecture.hidden[:-1])
            found["pooled"] = statistics[:, start : start + self.architecture.hidden[-1]]
        names = {"tones": self.tones is not None, "places": self.places, "scores": True}
        return {**found, **dict(zip([name for name, there in names.items() if there], others, strict=False))}

    def _arrays(self, *results: Tensor) -> Arrays:
        return {kind: values.numpy().copy() for kind, values in self._kinds(*results).items()}

    @torch.inference_mode()
    def _check(self, discriminator: Discriminator) -> None:
        """Raises ArithmeticError unless the stages agree with the plain pass, on noise and at low contrast."""
        corners, patch, size = self.layout
        noise = torch.randint(256, (size, size, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        images = torch.stack((noise, 200 + noise // 16)).to(corners.device)
        patches = to_unit(extract_patches(images, corners.long(), patch))
        plain = discriminator(patches, len(corners), statistics=True)
        results = self.run(images)[0].tensor_split([self.architecture.statistics], dim=1)
        for found, expected in zip(results, (plain.statistics, plain.logits.reshape(len(images), -1)), strict=True):
            difference = float((found - expected).norm() / expected.norm())
            if not difference < TOLERANCE:
                raise ArithmeticError(f"the kernels are {difference:.2g} away from the plain pass")


class Pipeline:
    """A recorded pass on a GPU; images are uploaded and results downloaded while other images pass."""

    def __init__(
        self, function: Callable[[Tensor], tuple[Tensor, ...]], given: Tensor, copied: Callable[..., Arrays]
    ) -> None:
        """`given` is a batch of the recorded size; `copied` turns the results into arrays of their own memory."""
        self.copied = copied
        self.upload, self.compute, self.download = (torch.cuda.Stream(given.device) for _ in range(3))
        self.recorded = Recorded(function, given, stream=self.compute)
        self.lock, self.copiers = Lock(), ThreadPoolExecutor(COPIERS)
        self.free: list[Slot] = []

    @torch.inference_mode()
    def start(self, pixels: Pixels | Tensor) -> Callable[[], Arrays]:
        """Enqueues upload, computation and download; a call of the returned function waits for the results."""
        count = len(pixels)
        with torch.cuda.device(self.recorded.given.device), self.lock:
            slot = self.free.pop() if self.free else Slot(self)
            if isinstance(pixels, Tensor):
                images = pixels
                self.upload.wait_stream(torch.cuda.current_stream())
                images.record_stream(self.upload)
            else:
                images = slot.images[:count]
                copy_images(images.numpy(), pixels, self.copiers)
            with torch.cuda.stream(self.upload):
                slot.given[:count].copy_(images, non_blocking=True)
                slot.arrived.record()
            with torch.cuda.stream(self.compute):
                slot.arrived.wait()
                self.recorded.given.copy_(slot.given)
                for out, result in zip(slot.out, self.recorded.replay(), strict=True):
                    out.copy_(result)
                slot.passed.record()
            with torch.cuda.stream(self.download):
                slot.passed.wait()
                for result, out in zip(slot.results, slot.out, strict=True):
                    result.copy_(out, non_blocking=True)
                slot.left.record()

        def wait() -> Arrays:
            slot.left.synchronize()
            found = self.copied(*(each[:count] for each in slot.results))
            self.free.append(slot)
            return found

        return wait


class Slot:
    """Memory for one batch in flight, pinned at both ends: only pinned memory is copied asynchronously."""

    def __init__(self, pipeline: Pipeline) -> None:
        given, results = pipeline.recorded.given, pipeline.recorded.result
        self.images = torch.empty(given.shape, dtype=given.dtype, pin_memory=True)
        self.given, self.out = torch.empty_like(given), [torch.empty_like(each) for each in results]
        self.results = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in results]
        self.arrived, self.passed, self.left = (torch.cuda.Event() for _ in range(3))
        for stream in (pipeline.upload, pipeline.compute, pipeline.download):
            # The memory may have had another use just before, and the slot may be dropped while it is in flight.
            stream.wait_stream(torch.cuda.current_stream())
            for each in (self.given, *self.out):
                each.record_stream(stream)


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
        with torch.backends.cudnn.flags(enabled=True, benchmark=search, deterministic=not search):
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


class PatchLayout(NamedTuple):
    """Patches of one size at the same corners of every image; a whole image is one patch of its own size."""

    corners: Tensor  # (patches, 2), int32
    patch: int  # side of a patch
    size: int  # side of an image


class Classifier(NamedTuple):
    """Last layer: the contribution of each pixel of a feature map to the logits of the patches that contain it."""

    weights: Tensor  # (2, C, taps), whose sum has the digits of both; taps are padded to the size of the matrix units
    bias: Tensor  # (1,)
    cells: int

    @classmethod
    def of(cls, head: nn.Linear | nn.Conv2d, weight: Tensor, cells: int, dtype: torch.dtype) -> "Classifier":
        """From weights (C, cells x cells) and the bias of the head."""
        taps = max(16, 1 << (cells * cells - 1).bit_length())
        padded = F.pad(weight.detach().float(), (0, taps - cells * cells))
        high = padded.to(dtype)
        return cls(torch.stack((high, (padded - high.float()).to(dtype))), values_of(head.bias), cells)


class FastMBConv:
    """Inverted residual block in one precision."""

    def __init__(self, block: MBConv, dtype: torch.dtype) -> None:
        conv = block.filter
        self.expand = None if block.expand is None else matrix_of(block.expand, dtype)
        self.filter = conv.weight.detach().float().flatten(1).T.contiguous(), values_of(conv.bias)  # (taps x taps, C)
        self.project = matrix_of(block.project, dtype)
        self.taps, self.stride, self.before = conv.kernel_size[0], conv.stride[0], conv.margins[0]
        self.residual = block.residual
        self.at_once = self.expand is not None and len(self.expand[0]) <= FEW  # the expansion is never written


class FastInverted:
    """Inverted discriminator in one precision, in float16 instead of bfloat16.

    No normalisation removes rounding errors from this network, and three more bits cost nothing; ReLU6 keeps values in
    range.
    """

    def __init__(
        self, discriminator: Discriminator, dtype: torch.dtype, stages: Any, describe: Describe | None
    ) -> None:
        architecture, head = discriminator.architecture, discriminator.head
        self.layer_sizes, self.stages, self.describe = architecture.layer_sizes, stages, describe
        self.embedding, self.embed = architecture.embedding, discriminator.embed
        self.dtype = torch.float16 if dtype == torch.bfloat16 else dtype
        layers = [layer for layer in discriminator.blocks if isinstance(layer, InvertedLayer)]
        self.layers = [
            [FastMBConv(block, self.dtype) for block in layer.blocks if isinstance(block, MBConv)] for layer in layers
        ]
        stem = layers[0].stem
        assert stem is not None
        self.stem = (window_kernel(stem) * (PIXEL_SCALE / LEVELS)).float(), values_of(stem.bias)
        weight, side = head.weight.view(-1, 1), 2 * architecture.cells
        self.cell = Classifier.of(head, weight, 1, self.dtype)  # of a larger image: every cell has a logit
        mean = weight.expand(-1, side**2) / side**2
        self.patch = Classifier.of(head, mean, side, self.dtype)  # of a patch: the mean over its cells

    def run(self, images: Tensor, layout: PatchLayout) -> tuple[Tensor, ...]:
        """(B, size, size, 3) in uint8 to (B, statistics and logits) in float32, and the result of `describe`."""
        stages, count = self.stages, len(images)
        # The map before the last is classified. Each layer halves a map and leaves an odd row out.
        side = layout.patch >> (len(self.layers) - 1)
        classifier = self.patch if side == self.patch.cells else self.cell
        logits = len(layout.corners) * (side - classifier.cells + 1) ** 2
        out = torch.empty(count, sum(self.layer_sizes) + self.embedding + logits, device=images.device)
        *statistics, embedding, last = out.split([*self.layer_sizes, self.embedding, logits], dim=1)
        x = stages.stem(images, layout, *self.stem, self.dtype)
        maps = []
        for number, blocks in enumerate(self.layers):
            for block in blocks:
                x = stages.mbconv(x, block)
            stages.statistics(x, statistics[number])
            if number == len(self.layers) - 2:
                stages.classify(x, classifier, last)
            if self.describe is not None:  # otherwise the memory of the map is free for the next layers
                maps.append(x.permute(0, 3, 1, 2))
        if self.embed is not None:
            embedding.copy_(self.embed(torch.cat(statistics, 1)))
        return (out,) if self.describe is None else (out, self.describe(maps))


@cache
def nearest_kernel(device: torch.device) -> Callable[[Tensor, Tensor], Tensor] | None:
    """`programs.nearest_squares` if it works on this GPU; the plain product is slower but equivalent."""
    try:
        from discopatch.model.kernels.programs import nearest_squares  # needs Triton

        bank = torch.randn(300, 64, generator=torch.Generator().manual_seed(0)).to(device)
        with torch.cuda.device(device if device.type == "cuda" else -1):
            found = nearest_squares(bank[::7] + 0.01, bank)
    except Exception:  # anything that a kernel compiler raises
        return None
    return nearest_squares if torch.allclose(found, torch.full_like(found, 64 * 0.01**2), rtol=0.01) else None


def window_kernel(conv: nn.Module) -> Tensor:
    """(32, C) in float64: a convolution over pixels as a matrix of windows, tap by tap their three colours; zeros."""
    weight = conv.get_parameter("weight").detach().double().permute(2, 3, 1, 0).flatten(0, 2)
    return F.pad(weight, (0, 0, 0, ALIGNED - WINDOW))


def matrix_of(conv: SameConv2d, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A convolution of 1 x 1 as a matrix (C, C'), and its bias (C',) in float32."""
    return conv.weight.detach()[:, :, 0, 0].T.to(dtype).contiguous(), values_of(conv.bias)


def values_of(parameter: Tensor | None) -> Tensor:
    assert parameter is not None
    return parameter.detach().float().contiguous()
