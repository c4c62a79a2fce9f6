"""The user's classes, named by a setting."""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

from bk_spark.protocol.errors import InvalidArgumentError

#: How a setting names a class.
CLASS_FORM: Final = "`package.module:Class`"
_CLASS_NAME: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_class_name(text: str) -> bool:
    """Return whether ``text`` may name a user's class."""
    return _CLASS_NAME.fullmatch(text) is not None


def class_of(name: str, kind: type[Any], setting: str) -> Any:
    """Import a user's class, a subclass of ``kind``. Raises InvalidArgumentError, which begins with ``setting``."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(f"{setting}: {name} cannot be imported: {error}") from None
    if not isinstance(found, type) or not issubclass(found, kind):
        raise InvalidArgumentError(f"{setting}: {name} is not a subclass of {kind.__name__}")
    if not getattr(found, "plugin", ""):
        raise InvalidArgumentError(f"{setting}: {name} has no name in its attribute plugin")
    return found
