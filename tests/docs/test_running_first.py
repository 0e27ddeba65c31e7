"""The same for the pages that are read first; a file of its own, so that two processes share the work."""

from collections.abc import Callable

import pytest

from tests.docs.blocks import pages

FIRST = [page for page in pages() if page in ("README.md", "docs/index.md", "docs/tutorial.md") or "/how-to/" in page]


@pytest.mark.slow
@pytest.mark.parametrize("page", FIRST)
def test_the_blocks_of_a_page_run(page: str, read_page: Callable[[str], None]) -> None:
    read_page(page)
