"""Pages of a log's list, decoded once: the same few pages are read again and again, which takes most of the time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from unittest.mock import patch

from bk_spark.log.formats import page

#: The meaning of bytes never changes.
_decode_page = lru_cache(maxsize=2_000)(page.decode_page)


@contextmanager
def pages_decoded_once() -> Iterator[None]:
    """All of ``bk_spark.log`` takes pages from a cache."""
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("bk_spark.log.") and hasattr(module, "decode_page")
    ]
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, "decode_page", _decode_page))
        yield
