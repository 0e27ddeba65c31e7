"""A pass recorded once and replayed: at one image a launch takes longer than what it launches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

WARM_UP = 3


class Recorded:
    """A function of one tensor as a CUDA graph: copy into `given`, replay, and `result` is there, all on one stream."""

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
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
        with convolutions(search=search):
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    function(given)
            # Other threads may decode pictures meanwhile, and pin memory for them.
            with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self.result = function(given)

    def replay(self) -> Tensor:
        """On the current stream; the result is overwritten by the next one."""
        self._graph.replay()
        return self.result


@contextmanager
def convolutions(*, search: bool) -> Iterator[None]:
    """The way of convolving that cuDNN would choose unseen, the same in every process, or the fastest by trial."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = search, not search
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before
