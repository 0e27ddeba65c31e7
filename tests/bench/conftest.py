"""What tests of whole runs share: images of a suite, and the processes that corrupt them."""

from collections.abc import Iterator

import pytest

from discopatch.bench.dataset import CorruptionPool, Suite
from tests.bench.bench_samples import make_suite


@pytest.fixture(scope="module")
def pool() -> Iterator[CorruptionPool]:
    with CorruptionPool(1, frost=False) as pool:
        yield pool


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return make_suite(tmp_path_factory.mktemp("images"))
