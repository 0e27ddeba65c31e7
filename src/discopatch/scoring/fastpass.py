"""The fast pass: pictures come to the GPU and evidence leaves it while other pictures pass."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.images import Pixels
from discopatch.model import Discriminator
from discopatch.model.fast import Look, Network, choose_stages
from discopatch.model.fast.recorded import Recorded
from discopatch.scoring.evidence import Evidence
from discopatch.streams import behind

MOST_RECORDED = 8  # batch sizes; each holds no memory but its pictures and its results

Later = Callable[[], Evidence]


class Lane:
    """What batches of a GPU share: a stream each for coming, passing and leaving."""

    def __init__(self, device: torch.device) -> None:
        self.coming, self.passing, self.leaving = (torch.cuda.Stream(device) for _ in range(3))
        self.pool = torch.cuda.graph_pool_handle()
        self.lock = Lock()


class Slot:
    """Room for one batch on its way, pinned at both ends: only such memory is copied while something else runs."""

    def __init__(self, batch: int, size: int, width: int, device: torch.device, lane: Lane) -> None:
        self.pictures = torch.empty(batch, size, size, 3, dtype=torch.uint8, pin_memory=True)
        self.pixels = self.pictures.numpy()  # torch would copy in threads, which wait for those that decode
        self.given = torch.empty(self.pictures.shape, dtype=torch.uint8, device=device)
        self.found = torch.empty(batch, width, device=device)
        self.evidence = torch.empty(batch, width, pin_memory=True)
        self.arrived, self.passed, self.left = (torch.cuda.Event() for _ in range(3))
        for stream in (lane.coming, lane.passing, lane.leaving):
            # The memory may have been another's a moment ago, and the slot may be forgotten while it is on its way.
            stream.wait_stream(torch.cuda.current_stream())
            self.given.record_stream(stream)
            self.found.record_stream(stream)


class FastPass:
    """Pictures in uint8 -> logits and statistics, by the stages of `discopatch.model.fast`.

    corners: where each picture is looked at, (patches, 2); none for the whole picture at once.
    batch_size: how many pictures `start` takes at the most; fewer pass with room left over, so that no score depends on
    how many came along. On a GPU the pass is recorded as a CUDA graph when it is first needed, for each batch size.
    search: cuDNN tries which convolution is fastest, and may choose another in another process.
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
    ) -> None:
        self.device = next(discriminator.parameters()).device
        self.batch_size, self.size, self.search = batch_size, size, search
        patch = discriminator.architecture.patch_size
        self.look = Look.at(corners, patch=patch, size=size, device=self.device)
        self.network = Network.of(discriminator, dtype)
        self.width = self.network.width(self.look)
        self._recorded: dict[int, Recorded] = {}
        self._slots: list[Slot] = []
        with on(self.device):
            self.stages = choose_stages(self.network, self.look)
            self._lane = Lane(self.device) if self.device.type == "cuda" else None

    @torch.inference_mode()
    def __call__(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """(B, size, size, 3) in uint8 on the device -> logits (B, places) and statistics (B, 2 x channels)."""
        with on(self.device):
            found = self.run(pictures) if self._lane is None else self._replayed(pictures, self._lane)
        return found[:, 2 * self.network.channels :], found[:, : 2 * self.network.channels]

    def run(self, pictures: Tensor) -> Tensor:
        """The pass itself, stage by stage, nothing recorded."""
        return self.network.run(pictures, self.look, self.stages)

    def stream(self, batches: Iterable[Pixels]) -> Iterator[Evidence]:
        """The evidence of each batch, in their order; the next one is on its way before one is waited for."""
        return (later() for later in behind(map(self.start, batches), 1))

    @torch.inference_mode()
    def start(self, pixels: Pixels) -> Later:
        """Sends up to `batch_size` pictures on their way; what comes back waits for their evidence, once."""
        if len(pixels) > self.batch_size:
            raise ValueError(f"{len(pixels)} pictures at once: send at most {self.batch_size}")
        if self._lane is None:
            return partial(self._evidence, self.run(torch.from_numpy(pixels)).numpy())
        with on(self.device), self._lane.lock:
            slot = self._slots.pop() if self._slots else self._new_slot(self._lane)
            slot.pixels[: len(pixels)] = pixels
            self._send(slot, self._lane)
        return partial(self._wait, slot, len(pixels))

    def _new_slot(self, lane: Lane) -> Slot:
        return Slot(self.batch_size, self.size, self.width, self.device, lane)

    def _send(self, slot: Slot, lane: Lane) -> None:
        recorded = self._recording(self.batch_size, lane)
        with torch.cuda.stream(lane.coming):
            slot.given.copy_(slot.pictures, non_blocking=True)
            slot.arrived.record()
        with torch.cuda.stream(lane.passing):
            slot.arrived.wait()
            recorded.given.copy_(slot.given)
            slot.found.copy_(recorded.replay())
            slot.passed.record()
        with torch.cuda.stream(lane.leaving):
            slot.passed.wait()
            slot.evidence.copy_(slot.found, non_blocking=True)
            slot.left.record()

    def _wait(self, slot: Slot, count: int) -> Evidence:
        slot.left.synchronize()
        found = slot.evidence.numpy()[:count].copy()
        self._slots.append(slot)
        return self._evidence(found)

    def _evidence(self, found: NDArray[np.float32]) -> Evidence:
        statistics, logits = np.split(found, [2 * self.network.channels], axis=1)
        return Evidence(np.ascontiguousarray(logits), np.ascontiguousarray(statistics))

    def _replayed(self, pictures: Tensor, lane: Lane) -> Tensor:
        current = torch.cuda.current_stream()
        with lane.lock:
            recorded = self._recording(len(pictures), lane)
            lane.passing.wait_stream(current)
            with torch.cuda.stream(lane.passing):
                recorded.given.copy_(pictures)
                found = recorded.replay().clone()
        current.wait_stream(lane.passing)
        found.record_stream(current)
        return found

    def _recording(self, batch: int, lane: Lane) -> Recorded:
        if batch not in self._recorded:
            if len(self._recorded) >= MOST_RECORDED:
                del self._recorded[next(iter(self._recorded))]
            given = torch.zeros(batch, self.size, self.size, 3, dtype=torch.uint8, device=self.device)
            self._recorded[batch] = Recorded(self.run, given, stream=lane.passing, pool=lane.pool, search=self.search)
        return self._recorded[batch]


def on(device: torch.device) -> torch.cuda.device:
    """Kernels are launched on the current GPU, which need not be the one that the tensors are on."""
    return torch.cuda.device(device if device.type == "cuda" else -1)
