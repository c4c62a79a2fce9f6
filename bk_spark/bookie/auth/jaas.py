"""Files with users and passwords in the syntax of Java's JAAS, as Apache's bookies and clients have them::

    Bookie {
      org.apache.zookeeper.server.auth.DigestLoginModule required
      user_spark="secret";
    };

Each section has one module, whose options are read. Apache's sections have no more.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from typing import Final

from bk_spark.protocol.errors import InvalidArgumentError

_LOG: Final = logging.getLogger(__name__)
#: The module of DIGEST-MD5's passwords.
_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/|\#[^\n]*)|"(?P<quoted>(?:[^"\\\n]|\\.)*)"|(?P<mark>[{};=])|(?P<word>[^\s{};="]+)""",
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_MAX_BYTES: Final = 256 * 1024


def options_of(path: str, section: str, setting: str) -> dict[str, str]:
    """Return the options of a section's module. They hold passwords.

    Parameters
    ----------
    path
        The file.
    section
        The section's name.
    setting
        The setting that names the file. Error texts begin with it.

    Raises
    ------
    InvalidArgumentError
        If the file cannot be read or is wrong, or lacks the section. Errors show nothing of the file but the numbers
        of lines.
    """
    sections = _parsed(_read(path, setting), path, setting)
    if section not in sections:
        raise InvalidArgumentError(f"{setting}: {path} has no section {section}")
    return sections[section]


def _read(path: str, setting: str) -> str:
    try:
        with open(path, "rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidArgumentError(f"{setting}: {path} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        _LOG.warning("%s: others than its owner may read %s, which holds passwords; chmod 600", setting, path)
    try:
        if len(data) <= _MAX_BYTES:
            return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    raise InvalidArgumentError(f"{setting}: {path} is not a JAAS file")


def _parsed(text: str, path: str, setting: str) -> dict[str, dict[str, str]]:
    """Return the options of the first module of each section."""
    tokens = _Tokens(text, f"{setting}: {path}")
    sections: dict[str, dict[str, str]] = {}
    while tokens.more:
        name = tokens.text()
        tokens.mark("{")
        module, options = tokens.text(), {}
        if tokens.text() not in _FLAGS:
            raise tokens.error(f"expected a module and one of {', '.join(_FLAGS)} here")
        while not tokens.comes(";"):
            option = tokens.text()
            tokens.mark("=")
            options[option] = tokens.text()
        if not tokens.comes("}"):
            raise tokens.error("a section must have one module here")
        tokens.mark(";")
        if module != _MODULE:
            continue  # it is for another program
        if name in sections:
            raise tokens.error("this section stands here for the second time")
        sections[name] = options
    return sections


class _Tokens:
    """Words, texts in quotes and punctuation marks."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where
        self._at = 0
        self._tokens = self._all()
        self._next = next(self._tokens, None)

    @property
    def more(self) -> bool:
        return self._next is not None

    def error(self, what: str) -> InvalidArgumentError:
        line = self._text.count("\n", 0, self._at) + 1
        return InvalidArgumentError(f"{self._where} line {line}: {what}")

    def text(self) -> str:
        """Take a word, or a text in quotes."""
        token = self._take()
        if token.lastgroup == "quoted":
            return _ESCAPED.sub(r"\1", token["quoted"])
        if token.lastgroup == "word":
            return token["word"]
        raise self.error("a name or a value is missing")

    def mark(self, wanted: str) -> None:
        """Take this mark."""
        if not self.comes(wanted):
            raise self.error(f"{wanted} is missing")

    def comes(self, wanted: str) -> bool:
        """Take this mark if it comes next."""
        if self._next is None or self._next.group("mark") != wanted:
            return False
        self._take()
        return True

    def _take(self) -> re.Match[str]:
        token = self._next
        if token is None:
            raise self.error("the file ends in the middle of a section")
        self._at = token.start()
        self._next = next(self._tokens, None)
        return token

    def _all(self) -> Iterator[re.Match[str]]:
        at = 0
        while at < len(self._text):
            token = _TOKEN.match(self._text, at)
            if token is None:
                self._at = at
                raise self.error("a quote is not closed")
            at = token.end()
            if token.lastgroup != "blank":
                yield token
