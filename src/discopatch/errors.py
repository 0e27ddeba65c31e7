"""The errors of the package; each message names the remedy.

All of them are a `DiscopatchError`, and also the built-in error that a caller would expect in its place.
"""

import errno
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the numbers of errors that say that a disk is full


class DiscopatchError(Exception):
    """The base of all errors of this package."""


class ParameterError(DiscopatchError, ValueError):
    """An argument has a value that cannot be used."""


class SchemaError(ParameterError):
    """A field has a value of another type, or beyond the limits, of what it may hold."""


class MissingExtraError(DiscopatchError, ModuleNotFoundError):
    """An optional package is needed and not installed."""


class ImageError(DiscopatchError, ValueError):
    """One image cannot be used; `reason` is a `RefusalReason`, `detail` one sentence with the remedy."""

    def __init__(self, reason: Any, detail: str) -> None:
        super().__init__(reason, detail)  # both, or the error could not pass between processes
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


class NoImagesError(DiscopatchError, ValueError):
    """A source holds no image at all, or every one of them was refused."""


class TooFewImagesError(DiscopatchError, ValueError):
    """There are fewer normal images than the request needs."""


class TransformError(DiscopatchError, ValueError):
    """Images came through another transform than the one that is expected."""


class StoreError(DiscopatchError, OSError):
    """An object store cannot be reached, or does not give what was asked of it."""


class OutputError(DiscopatchError, OSError):
    """A file or folder, `filename`, could not be written; made of an error's number, its reason and the name."""

    def __str__(self) -> str:
        remedy = "free some space, or choose another place" if self.errno in FULL else "choose another place"
        return f"{self.filename} could not be written ({self.strerror}): {remedy}"


class WorkerError(DiscopatchError, RuntimeError):
    """A process that decodes images has ended."""


class WeightsError(DiscopatchError, ValueError):
    """A stored file cannot be used: weights, a checkpoint, a detector or a state."""


class NotFittedError(DiscopatchError, RuntimeError):
    """A detector was asked about images before it was fitted."""


class FrozenError(DiscopatchError, AttributeError):
    """A parameter of a fitted detector was to be changed."""


class ExportError(DiscopatchError, ValueError):
    """A folder cannot be used as an export, or a detector cannot be exported to it."""


class RunError(DiscopatchError, ValueError):
    """A run of training or of batch scoring cannot begin or go on, such as one with other settings."""


class ServiceError(DiscopatchError, RuntimeError):
    """A service did not answer as it should; `status` is that of its answer, where there was one."""

    def __init__(self, detail: str, *, status: int | None = None) -> None:
        super().__init__(detail)
        self.status = status


class NormalImagesWarning(UserWarning):
    """A warning about normal images, such as near-copies of one another."""
