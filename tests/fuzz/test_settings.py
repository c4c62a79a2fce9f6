"""Settings that people write: the ``.conf`` file of a bookie, and the keys of a client's configuration."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import strategies as st

from bk_spark.bookie.config import SETTINGS as CLIENT_SETTINGS, ClientConfig
from bk_spark.protocol.errors import InvalidArgumentError
from bookie_server.config.config import SETTINGS, SUPPORTED_KEYS, BookieConfig
from bookie_server.config.config_keys import KNOWN_KEYS
from bookie_server.config.load import load_config
from tests.fuzz.damage import hostile, with_long_number
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, outcome

_NEEDED: Final = [
    "metadataServiceUri=zk+hierarchical://localhost:2181/ledgers",
    "journalDirectories=/d/journal",
    "ledgerDirectories=/d/one,/d/two",
    "advertisedAddress=10.0.0.1",
]
#: With a default that is a value of the setting.
_DEFAULTS: Final = [f"{setting.name}={setting.default}" for setting in SETTINGS.values() if setting.default]
_NAMES: Final = sorted({*SUPPORTED_KEYS, *KNOWN_KEYS})
_USUAL: Final = [line.partition("=")[0] for line in _NEEDED]
_VALUES: Final = st.one_of(
    st.sampled_from(
        ["", "true", "false", "0", "-1", "1", "10", "0.5", "nan", "1e400", "1g", "5 m", "9" * 5_000, "٣", "a\0b"]
    ),
    st.text(max_size=20),
)
_LINES: Final = st.lists(
    st.one_of(
        st.sampled_from(_DEFAULTS),
        st.builds("{}={}".format, st.sampled_from(_NAMES), _VALUES),
        st.builds("{}={}".format, st.sampled_from(_USUAL), _VALUES),
    ),
    max_size=6,
)
_FILES: Final = _LINES.map(lambda lines: "\n".join([*_NEEDED, *lines]).encode("utf-8", "replace"))
#: An error names the key and repeats its value, which is the user's own.
_OWN_TEXT: Final = 20_000


def _no_names(host: str) -> str:
    """Resolve addresses, and nothing that would need a network."""
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        host.encode("idna")
        raise socket.gaierror(f"no address of {host!r}") from None


@fuzz(120, content=hostile(_FILES | with_long_number(_FILES)))
def test_conf_files(content: bytes) -> None:
    """A file gives a configuration and warnings, or an error that names the file."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostbyname", _no_names)
        path = Path(directory, "bookie.conf")
        path.write_bytes(content)
        found = outcome(lambda: load_config(str(path)), InvalidArgumentError, max_text=_OWN_TEXT)
        if not isinstance(found, Refused):
            config, warnings = found
            assert isinstance(config, BookieConfig)
            assert all(str(path) in warning for warning in warnings)


_PROPERTIES: Final = st.dictionaries(
    st.sampled_from([setting.name for setting in CLIENT_SETTINGS.values()]),
    _VALUES,
    max_size=4,
)


@fuzz(60, properties=_PROPERTIES)
def test_properties_of_a_client(properties: dict[str, str]) -> None:
    outcome(lambda: ClientConfig.from_properties(properties), InvalidArgumentError, max_text=_OWN_TEXT)


_NUMBERS: Final = {
    field: setting
    for field, setting in CLIENT_SETTINGS.items()
    if setting.default is not None and setting.default.lstrip("-").isdigit()
}


@pytest.mark.parametrize("field", _NUMBERS)
def test_numbers_of_a_client(field: str) -> None:
    """A number is refused, or is what the configuration has: in ms where the key is in seconds, None where it is
    off."""
    setting = _NUMBERS[field]
    in_seconds = setting.name.endswith(("Sec", "Seconds")) and not setting.name.endswith("MSec")
    for number in (-7, 0, 1, 5, 4_000, 5_000_000, 2**31 - 1, 2**31, 2**63):
        value = number * 1000 if in_seconds else number
        found = outcome(
            lambda number=number: ClientConfig.from_properties({setting.name: str(number)}),  # type: ignore[misc]
            InvalidArgumentError,
        )
        if isinstance(found, Refused):
            assert not setting.kind.fits(value)
        else:
            assert getattr(found, field) == (None if number < 0 else value)
