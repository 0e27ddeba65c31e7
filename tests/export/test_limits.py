"""An export reads what its limits allow, and explains one image."""

from pathlib import Path

import numpy as np
import pytest

import discopatch
from discopatch import Runtime
from discopatch.errors import ParameterError


def test_limits_are_arguments_of_an_export(onnx_folder: Path) -> None:
    image = np.zeros((70, 70, 3), np.uint8)
    runtime = discopatch.load(onnx_folder, max_pixels=70 * 70 - 1, max_bytes=10)
    assert isinstance(runtime, Runtime)
    large, long = runtime.predict([image, bytes(11)], workers=1)
    assert "--max-pixels" in str(large.error)
    assert "--max-bytes" in str(long.error)
    runtime.max_pixels = 70 * 70
    assert runtime.predict(image)[0].error is None
    assert runtime.with_rate(0.2).max_bytes == 10


def test_an_export_explains_one_image(onnx_folder: Path, tmp_path: Path) -> None:
    runtime = Runtime.load(onnx_folder)
    for source in (tmp_path, np.zeros((2, 64, 64, 3), np.uint8)):
        with pytest.raises(ParameterError, match="one image"):
            runtime.explain(source)
