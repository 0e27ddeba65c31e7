"""Every error that a user can meet; each message says what to do about it.

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


class CacheFullError(DiscopatchError, OSError):
    """The disk cannot hold the cache of decoded images."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class OutputError(DiscopatchError, OSError):
    """A file or folder, `filename`, could not be written; made of an error's number, its reason and the name."""

    def __str__(self) -> str:
        remedy = "free some space, or choose another place" if self.errno in FULL else "choose another place"
        return f"{self.filename} could not be written ({self.strerror}): {remedy}"


class HistoryError(DiscopatchError, OSError):
    """The file with the history of predictions cannot be opened, read or written."""


class HistoryFullError(HistoryError):
    """The disk cannot hold what was to be added to a history; nothing of it was."""


class WatchError(DiscopatchError, RuntimeError):
    """A folder cannot be watched, or not by this process."""


class WorkerError(DiscopatchError, RuntimeError):
    """A process that decodes images has ended."""


class WeightsError(DiscopatchError, ValueError):
    """A file does not hold what it should: weights, a checkpoint or a detector."""


class NotFittedError(DiscopatchError, RuntimeError):
    """A detector was asked about images before it was fitted."""


class FrozenError(DiscopatchError, AttributeError):
    """A parameter of a fitted detector was to be changed."""


class ExportError(DiscopatchError, ValueError):
    """A folder cannot be used as an export, or a detector cannot be exported to it."""


class ParityError(ExportError):
    """An export does not agree with its detector."""


class StateError(DiscopatchError, ValueError):
    """A file does not hold the state of a monitor, or holds that of another detector's."""


class RunError(DiscopatchError, ValueError):
    """A training run's folder and what was asked for do not go together."""


class ScoresError(DiscopatchError, ValueError):
    """A folder of scores and what was asked for do not go together: another detector, another source."""


class ClusterError(DiscopatchError, RuntimeError):
    """A cluster cannot be reached, or has given up."""


class CheckpointError(DiscopatchError, RuntimeError):
    """A checkpoint could not be written, or none can be read."""


class DivergedError(DiscopatchError, RuntimeError):
    """A training loss or a weight is no longer a finite number."""


class DownloadError(DiscopatchError, RuntimeError):
    """A package could not be downloaded."""


class HubError(DiscopatchError, OSError):
    """A repository of the hub, or a folder of its layout, cannot be read or written."""


class ServiceError(DiscopatchError, RuntimeError):
    """A service did not answer as it should; `status` is that of its answer, where there was one."""

    def __init__(self, detail: str, *, status: int | None = None) -> None:
        super().__init__(detail)
        self.status = status


class NormalImagesWarning(UserWarning):
    """The normal images are not what a fit takes them for, such as near-copies of one another."""
