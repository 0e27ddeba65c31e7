"""Networks from ONNX files, run by onnxruntime on the CPU."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from discopatch.encoders.network import (
    MAX_LAYERS,
    SIDES,
    Layers,
    NetworkInput,
    OutsideNetwork,
    as_map,
    check_network_digest,
)
from discopatch.errors import WeightsError
from discopatch.utils import file_contains, file_digest, require

OUTSIDE = b"location"  # the key of external data in ONNX, which the digest does not cover


class OnnxNetwork(OutsideNetwork):
    """An ONNX file. Outputs (B, C, H, W) and (B, N, C) are layers, the earliest first, and (B, C) is pooled.

    Without a pooled output it is the average of the last layer.
    """

    def __init__(self, name: str, file: Path, digest: str, given: NetworkInput, outputs: Sequence[str]) -> None:
        self._file, self._input, self._outputs = file, given, list(outputs)
        # One session per process: threads of a session do not survive a fork.
        self._sessions = {os.getpid(): open_session(file)}
        session = self._session
        known = {each.name: each for each in session.get_outputs()}
        if unknown := [each for each in outputs if each not in known]:
            raise WeightsError(f"{file} has no output {unknown[0]!r}: choose among {', '.join(known)}")
        side = input_side(file, session.get_inputs())
        if side is not None and given.side not in (None, side):
            raise WeightsError(
                f"{file} takes {side} pixels along a side, and its JSON has the size {given.side}: correct the JSON"
            )
        maps = all(len(known[each].shape or ()) in (2, 4) for each in outputs)
        super().__init__(name, digest, side=side or given.side, any_side=side is None and maps)

    def layers(self, x: Tensor) -> Layers:
        values = self._input.normalise(x).cpu()
        # One image at a time: the file may be for one image, and batching changes the last digits.
        parts = [self._run(image) for image in values.split(1)]
        found = [torch.cat([part[place] for part in parts]).to(x.device) for place in range(len(self._outputs))]
        maps = [as_map(each) for each in found if each.ndim in (3, 4)]
        pooled = [each for each in found if each.ndim == 2]
        if len(maps) + len(pooled) < len(found) or len(pooled) > 1 or not maps:
            shapes = ", ".join(str(tuple(each.shape)) for each in found)
            raise WeightsError(
                f"{self.name} gives {shapes}: name outputs of shape (1, C, H, W) or (1, N, C), and at most one (1, C)"
            )
        return Layers(maps, pooled[0] if pooled else maps[-1].mean(dim=(2, 3)))

    def _run(self, image: Tensor) -> list[Tensor]:
        session = self._session
        (name,) = (each.name for each in session.get_inputs())
        return [torch.from_numpy(each).float() for each in session.run(self._outputs, {name: image.numpy()})]

    @property
    def _session(self) -> Any:
        process = os.getpid()
        if process not in self._sessions:
            self._sessions[process] = open_session(self._file)
        return self._sessions[process]

    def on_device(self, device: torch.device) -> Self:
        return self


def open_session(file: Path) -> Any:
    require("onnxruntime", "runtime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # anything that onnxruntime raises for a damaged file
        raise WeightsError(f"{file} cannot be read as ONNX ({error}): take the original") from error


def input_side(file: Path, inputs: Sequence[Any]) -> int | None:
    """Pixels along a side of the input, or None if the file leaves them open."""
    remedy = "export it with one input of floats of shape (1, 3, side, side)"
    if len(inputs) != 1 or inputs[0].type != "tensor(float)" or len(inputs[0].shape) != 4:
        raise WeightsError(f"{file} takes other inputs than one image: {remedy}")
    images, channels, height, width = inputs[0].shape
    fixed = [side for side in (height, width) if isinstance(side, int)]
    if (isinstance(images, int) and images != 1) or (isinstance(channels, int) and channels != 3):
        raise WeightsError(f"{file} takes images of shape {tuple(inputs[0].shape)}: {remedy}")
    if not fixed:
        return None
    if len(set(fixed)) > 1 or fixed[0] not in SIDES:
        raise WeightsError(
            f"{file} takes {height} x {width} pixels, not a square of {SIDES[0]} to {SIDES[-1]}: {remedy}"
        )
    return fixed[0]


def load_onnx(name: str, file: Path, outputs: Sequence[str], *, digest: str | None = None) -> OnnxNetwork:
    """The network in the file, with the outputs of these names or of its JSON."""
    if not file.is_file():
        raise WeightsError(f"no file at {file}: give onnx=FILE:OUTPUT,OUTPUT,... with the path of an ONNX file")
    given = NetworkInput.read(file.with_suffix(".json"))
    outputs = list(outputs or given.outputs)
    found = onnx_digest(file, given, outputs)
    check_network_digest(name, digest, found)
    if file_contains(file, OUTSIDE):
        raise WeightsError(f"{file} refers to other files: save it as one, torch.onnx.export(..., external_data=False)")
    if not outputs:
        names = ", ".join(each.name for each in open_session(file).get_outputs()[:MAX_LAYERS])
        raise WeightsError(f"which outputs of {file} are features? Give onnx={file}:OUTPUT,OUTPUT,... out of {names}")
    if len(outputs) > MAX_LAYERS or len(set(outputs)) < len(outputs):
        raise WeightsError(f"{name} names {len(outputs)} outputs: give at most {MAX_LAYERS}, each once")
    return OnnxNetwork(name, file, found, given, outputs).check()


def onnx_digest(file: Path, given: NetworkInput, outputs: Sequence[str]) -> str:
    """16 hex digits of everything that features depend on: the file, the normalisation and the outputs."""
    settings = json.dumps({**asdict(given), "outputs": list(outputs)}, sort_keys=True)
    return hashlib.sha256(f"{file_digest(file)} {settings}".encode()).hexdigest()[:16]
