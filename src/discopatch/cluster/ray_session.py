"""A connection to Ray that leaves it as it was found, and what is wrong as one error."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from discopatch.errors import ClusterError, DiscopatchError
from discopatch.utils import require

INIT_DEATHS = 3  # actors in a row that may die while they start


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
            raise ClusterError(f"Ray cannot be reached ({first_line(error)}): check the address, or start it") from error
    settings = {"enable_progress_bars": False, "print_on_execution_start": False}
    settings |= {"max_consecutive_actor_init_deaths": INIT_DEATHS, "max_errored_blocks": 0}
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
def own_error() -> Iterator[None]:
    """Makes of an error that Ray brings back the one that was raised in a worker, or a ClusterError."""
    import ray.exceptions

    try:
        yield
    except ray.exceptions.RayError as error:
        cause = first_cause(error)
        if isinstance(cause, DiscopatchError):
            raise cause from None
        raise ClusterError(
            f"Ray has given up ({first_line(cause)}): what was scored is kept; see the logs of Ray, and run the same "
            "command again"
        ) from error


def first_cause(error: BaseException) -> BaseException:
    """Ours, if there is one on the way from an error to what caused it, or else where that way ends."""
    while not isinstance(error, DiscopatchError):
        cause = getattr(error, "cause", None) or error.__cause__
        if not isinstance(cause, BaseException) or cause is error:
            break
        error = cause
    return error


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
