"""Ray Data as the engine: a pool of actors, each with a detector, takes part after part."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from discopatch.utils import require


@contextmanager
def connected_ray(
    address: str | None = None, *, cores: int | None = None, object_store: int | None = None
) -> Iterator[Any]:
    """The module of Ray, connected to a cluster or to one that is started here, and left as it was found.

    Without an address it is the one that RAY_ADDRESS or this machine tells of, or a new one on this machine alone, of so
    many `cores` and bytes of `object_store`. Nothing is uploaded, no dashboard is started, and only errors are logged.
    """
    require("ray", extra="ray")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # with `uv run` it would upload the working folder
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray sets options of its own that it calls deprecated
        import ray.data

        ray.data.DataContext.get_current()
    own = not ray.is_initialized()
    if own:
        ray.init(
            address,
            num_cpus=cores,
            object_store_memory=object_store,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    levels = [(handler, handler.level) for handler in logging.getLogger("ray.data").handlers]
    try:
        for handler, _ in levels:
            handler.setLevel(logging.ERROR)
        yield ray
    finally:
        for handler, level in levels:
            handler.setLevel(level)
        if own:
            ray.shutdown()
