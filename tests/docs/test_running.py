"""The blocks of a page, one after the other, in a folder as a reader would have it."""

from collections.abc import Callable

import pytest

from tests.docs.blocks import blocks_of, pages
from tests.docs.test_running_first import FIRST

PAGES = [page for page in pages() if page not in FIRST and any(block.is_run for block in blocks_of(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, read_page: Callable[[str], None]) -> None:
    read_page(page)
