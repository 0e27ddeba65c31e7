from pathlib import Path

import pytest

from tests.bench.bench_samples import make_folders


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """natural/, ood/ and solar/ with a few small images each."""
    return make_folders(tmp_path_factory.mktemp("folders"))
