"""Settings as fields of a dataclass::

    @dataclass(frozen=True)
    class Config:
        add_timeout_ms: int = key("addEntryTimeoutSec", "5", whole(1, unit=1000), "What it means.")

The kind of a setting parses its text. The page of documentation is printed from the same declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.settings.kinds import Kind, WrongValueError


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Parameters
    ----------
    name
        The name that users write.
    default
        The default as a user would write it. None: no default, the setting may be absent.
    kind
        How its text is parsed.
    doc
        What it means, for the page of documentation.
    other_name
        A second name, used if ``name`` is not given.
    missing
        In words, what an absent setting means, if that is not ``default``.
    secret
        Its text is not shown in errors.
    apache
        Whether Apache has a key of this name and unit.
    """

    name: str
    default: str | None
    kind: Kind
    doc: str
    other_name: str = ""
    missing: str = ""
    secret: bool = False
    apache: bool = True

    def parse(self, text: str, where: str = "", name: str = "") -> Any:
        """Parse a text. Raises InvalidArgumentError starting with ``where`` and ``name`` (default: ``self.name``)."""
        try:
            return self.kind.parse(text)
        except WrongValueError as wrong:
            shown = "" if self.secret else f" {text!r}"
            raise InvalidArgumentError(f"{where}{name or self.name}:{shown} {wrong}") from None


def declare(setting: Setting, absent: Any = None) -> Any:
    """Return a dataclass field for ``setting``. If the setting has no default, the field's default is ``absent``."""
    default = absent if setting.default is None else setting.kind.parse(setting.default)
    return field(default=default, repr=not setting.secret, metadata={"setting": setting})


def key(
    name: str, default: str, kind: Kind, doc: str, *, apache: bool = True, other_name: str = "", missing: str = ""
) -> Any:
    """Return a dataclass field for a key of a configuration. The arguments are those of :class:`Setting`."""
    return declare(Setting(name, default, kind, doc, other_name, missing, apache=apache))


def settings_of(owner: type[Any]) -> dict[str, Any]:
    """Return the settings among the fields of a dataclass, by field name."""
    return {one.name: one.metadata["setting"] for one in fields(owner) if "setting" in one.metadata}


def check_fields(owner: Any) -> None:
    """Check values from a program. Raises InvalidArgumentError that names the field."""
    for name, setting in settings_of(type(owner)).items():
        value, kind = getattr(owner, name), setting.kind
        if not kind.fits(value):
            raise InvalidArgumentError(f"{name}: {value!r} must be {kind.allowed_value or kind.allowed}")


def markdown_table(
    columns: Mapping[str, Callable[[str, Any], str]], settings: Mapping[str, Any], centred: Collection[str] = ()
) -> list[str]:
    """Return the lines of a table. ``columns`` maps each heading to the cell's text for a field name and setting."""
    return [
        f"| {' | '.join(columns)} |",
        f"|{'|'.join(':-:' if heading in centred else '---' for heading in columns)}|",
        *(f"| {' | '.join(cell(*one) for cell in columns.values())} |" for one in settings.items()),
    ]
