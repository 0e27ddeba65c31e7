"""Images that go together: files before they are decoded, and batches after."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from discopatch.images.image import NamedImage, Pixels, Refusal
from discopatch.images.items import Item

if TYPE_CHECKING:
    import torch

Read: TypeAlias = Callable[[Item], NamedImage | Refusal]
Slot: TypeAlias = Item | None  # none where a source of several ends


class ImageBatch(NamedTuple):
    """Images that were read together, and the pixels of those that were not refused."""

    items: list[NamedImage | Refusal]
    pixels: "Pixels | torch.Tensor | None"  # (B, size, size, 3), on a GPU where they were decoded there
    ends: bool  # whether its source has no more; where a full batch came before this one may be empty


def chunks(items: Iterable[Slot], size: int, room: int) -> Iterator[list[Slot]]:
    """Up to `size` items at a time, or fewer whose bytes fill an eighth of the room; the end of a source ends a chunk.

    When a source fails, the images before it still come first, as they do with one worker.
    """
    chunk: list[Slot] = []
    failure: list[Slot] = []
    held = 0
    try:
        for item in items:
            chunk.append(item)
            held += item.size if item is not None else 0
            if item is None or len(chunk) == size or held > room // 8:
                yield chunk
                chunk, held = [], 0
    except Exception as error:
        failure = [Item("", error)]
    yield from filter(None, (chunk, failure))
