"""docs/api.rst names every public name, and what it prints has a docstring.

What docstrings must say is checked where they are printed: ``make docs`` and ``make lint`` run numpydoc's checks, which
docs/conf.py chooses.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator

import pytest

import bk_spark
from bk_spark import errors
from bk_spark.bookie.config import SETTINGS
from tests.support.environments import REPOSITORY

pytestmark = pytest.mark.unit

PAGE = (REPOSITORY / "docs" / "api.rst").read_text("utf-8")


def printed() -> dict[str, object]:
    """Functions and classes of the page by the name that it gives them."""
    found = {}
    for name in re.findall(r"^\.\. auto(?:class|function):: ([\w.]+)", PAGE, re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        found[name] = getattr(importlib.import_module(module or "bk_spark"), attribute)
    return found


def undocumented(definition: object) -> Iterator[str]:
    """The class or function, and its public methods and properties, that have no docstring of their own."""
    own = vars(definition).get("__doc__") if inspect.isclass(definition) else getattr(definition, "__doc__", None)
    # Python writes the signature of a dataclass into its docstring.
    if not own or (dataclasses.is_dataclass(definition) and own.startswith(f"{definition.__name__}(")):
        yield definition.__qualname__  # type: ignore[attr-defined]
    if not inspect.isclass(definition):
        return
    for base in definition.__mro__:
        if not base.__module__.startswith(("bk_spark.", __name__)):
            continue
        for name, member in vars(base).items():
            method = getattr(member, "__func__", member)
            is_public = not name.startswith("_") and (inspect.isfunction(method) or isinstance(method, property))
            if is_public and not method.__doc__:
                yield f"{definition.__qualname__}.{name}"


def test_every_public_name_is_printed() -> None:
    assert {name for name in printed() if "." not in name} == {*bk_spark.__all__} - {"__version__", "auth", "errors"}
    assert ".. automodule:: bk_spark.protocol.errors" in PAGE


def test_what_is_printed_has_docstrings() -> None:
    assert not [name for definition in printed().values() for name in undocumented(definition)]


def test_every_error_has_a_sentence_of_its_own() -> None:
    kinds = [
        kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.BookKeeperError)
    ]
    assert len(kinds) > 40
    for kind in kinds:
        assert re.match(r"[A-Z][^\n]*[.:]", vars(kind)["__doc__"]), kind


def test_every_setting_has_a_sentence() -> None:
    """The page of settings prints it, so that the class need not repeat it."""
    assert {*SETTINGS} == {one.name for one in dataclasses.fields(bk_spark.ClientConfig)}
    for name, setting in SETTINGS.items():
        assert setting.doc.endswith("."), name


@dataclasses.dataclass
class Bare:
    field: int

    def method(self) -> None: ...

    @property
    def shown(self) -> int:
        return self.field

    @classmethod
    def made(cls) -> None: ...

    def _own(self) -> None: ...


class BareEnum(enum.Enum):
    """Has one."""

    ONE = 1


def test_gaps_are_found() -> None:
    assert [*undocumented(Bare)] == ["Bare", "Bare.method", "Bare.shown", "Bare.made"]
    assert not [*undocumented(BareEnum)]
