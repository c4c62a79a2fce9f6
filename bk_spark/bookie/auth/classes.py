"""Classes of the user's that a setting names."""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

from bk_spark.protocol.errors import InvalidArgumentError

#: How a setting names a class.
CLASS_FORM: Final = "`package.module:Class`"
_CLASS_NAME: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_class_name(text: str) -> bool:
    """Return whether ``text`` may name a class of a user's."""
    return _CLASS_NAME.fullmatch(text) is not None


def class_of(name: str, kind: type[Any], setting: str) -> Any:
    """Import a class of a user's, a subclass of ``kind``. Raises InvalidArgumentError that begins with ``setting``."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(f"{setting}: {name} cannot be imported: {error}") from None
    if not isinstance(found, type) or not issubclass(found, kind):
        raise InvalidArgumentError(f"{setting}: {name} is no subclass of {kind.__name__}")
    if not getattr(found, "plugin", ""):
        raise InvalidArgumentError(f"{setting}: {name} has no name in its attribute plugin")
    return found
