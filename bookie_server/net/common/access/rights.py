"""What names may do: a table in a file, one line for each pattern of names::

    # rights        names
    all             user:bookkeeper
    read,write      subject:CN=spark,*
    read            *

The rights come first, because names may have blanks and commas. ``*`` in a pattern stands for any text, and a pattern
matches whole names. A peer has the rights of all lines that match one of its names. One without a name is
``anonymous``. No line takes a right away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Final

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.settings.kinds import did_you_mean

#: Reads, and the list of a ledger's entries.
READ: Final = 1
#: Adds, explicit LACs, and waiting until entries are durable.
WRITE: Final = 2
#: Fencing, and the adds of recovery and of repairs, which fenced ledgers take, too. A fencing read also needs READ.
FENCE: Final = 4
#: Questions about the bookie itself.
ADMIN: Final = 8
ALL: Final = READ | WRITE | FENCE | ADMIN
_BY_NAME: Final = {"read": READ, "write": WRITE, "fence": FENCE, "admin": ADMIN, "all": ALL}
#: The name of a peer that has none.
ANONYMOUS: Final = "anonymous"
_KEY: Final = "authorizationFile"


class Authorization:
    """The table. Parameters: the rights of each pattern."""

    def __init__(self, lines: Iterable[tuple[int, str]]) -> None:
        self._lines = [(rights, _compiled(pattern)) for rights, pattern in lines]

    @classmethod
    def load(cls, path: str) -> Authorization:
        """Read the file at ``path``. Raises InvalidArgumentError that names the file and the line."""
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise InvalidArgumentError(f"{_KEY}: {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InvalidArgumentError(f"{_KEY}: {path} is not UTF-8 text") from None
        lines = []
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if line and not line.startswith("#"):
                lines.append(_parsed(line, f"{_KEY}: {path} line {number}"))
        if not lines:
            raise InvalidArgumentError(f"{_KEY}: {path} has no line, so nobody could use the bookie")
        return cls(lines)

    def rights_of(self, names: Sequence[str]) -> int:
        """Return what a peer with these names may do: READ, WRITE, FENCE and ADMIN, or some of them."""
        known = names or (ANONYMOUS,)
        found = (rights for rights, pattern in self._lines if any(map(pattern.fullmatch, known)))
        return reduce(or_, found, 0)


def words_of(rights: int) -> str:
    """Return the names of rights, for logs."""
    return ", ".join(name for name, right in _BY_NAME.items() if right != ALL and right & rights) or "nothing"


def _parsed(line: str, where: str) -> tuple[int, str]:
    words, pattern, *_ = [*line.split(maxsplit=1), ""]
    if not pattern:
        raise InvalidArgumentError(f"{where}: rights and a pattern of names must stand here, such as: read user:spark")
    if ":" not in pattern and pattern not in ("*", ANONYMOUS):
        raise InvalidArgumentError(
            f"{where}: {pattern!r} matches no name: those begin with user:, role: or subject:, or are {ANONYMOUS}"
        )
    rights = 0
    for word in words.split(","):
        if word not in _BY_NAME:
            known = ", ".join(_BY_NAME)
            raise InvalidArgumentError(f"{where}: {word!r} is none of {known}{did_you_mean(word, _BY_NAME)}")
        rights |= _BY_NAME[word]
    return rights, pattern


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
