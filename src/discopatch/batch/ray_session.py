"""A connection to Ray that leaves it as it was found."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from discopatch.errors import ClusterError
from discopatch.utils import require

INIT_DEATHS = 3  # actors in a row that may die while they start
MOST_CHARACTERS = 300  # of what Ray says


@contextmanager
def connected_ray(
    address: str | None = None, *, cores: int | None = None, object_store: int | None = None
) -> Iterator[Any]:
    """The module of Ray, connected to a cluster or to one that is started here.

    Without an address it is the one that RAY_ADDRESS or this machine tells of, or a new one on this machine alone, with
    so many `cores` and bytes of `object_store`. Nothing is uploaded, no dashboard is started, only errors are logged.
    """
    require("ray", extra="ray")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # with `uv run` it would upload the working folder
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray sets options of its own that it calls deprecated
        import ray.data

        context = ray.data.DataContext.get_current()
    own = not ray.is_initialized()
    if own:
        try:
            ray.init(
                address,
                num_cpus=cores,
                object_store_memory=object_store,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ClusterError(f"Ray cannot be reached ({last_line(error)}): check the address, or start it") from error
    settings = {
        "enable_progress_bars": False,
        "print_on_execution_start": False,
        "max_errored_blocks": 0,
        "max_consecutive_actor_init_deaths": INIT_DEATHS,
    }
    before = {name: getattr(context, name) for name in settings if hasattr(context, name)}
    levels = [(handler, handler.level) for handler in logging.getLogger("ray.data").handlers]
    try:
        for handler, _ in levels:
            handler.setLevel(logging.CRITICAL)
        for name in before:
            setattr(context, name, settings[name])
        yield ray
    finally:
        for name, value in before.items():
            setattr(context, name, value)
        for handler, level in levels:
            handler.setLevel(level)
        if own:
            ray.shutdown()


@contextmanager
def ray_errors() -> Iterator[None]:
    """Makes one ClusterError of all errors with which Ray itself gives up."""
    import ray.exceptions

    try:
        yield
    except ray.exceptions.RayError as error:
        raise ClusterError(
            f"Ray has given up ({last_line(error)}): what was scored is kept; look into the logs of Ray, and run the "
            "same command again"
        ) from error


def last_line(error: BaseException) -> str:
    """What an error that was brought back from another process says behind its traceback."""
    lines = str(error).strip().splitlines()
    return lines[-1][:MOST_CHARACTERS] if lines else type(error).__name__
