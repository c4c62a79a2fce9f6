"""The client's settings as properties: Apache's keys and units, and what is said of wrong ones."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from bk_spark.bookie.config import SETTINGS, ClientConfig
from bk_spark.bookie.config_page import reference
from bk_spark.protocol.errors import InvalidArgumentError

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "client-config.md"


def test_keys_and_units_are_apaches() -> None:
    config = ClientConfig.from_properties(
        {"addEntryTimeoutSec": "7", "zkTimeout": " 4000 ", "batchReadEnabled": "False", "maxPendingBytes": "1024"}
    )
    assert (config.add_timeout_ms, config.zk_session_timeout_ms, config.max_pending_bytes) == (7_000, 4_000, 1024)
    assert config.batch_read_enabled is False
    assert config.read_timeout_ms == ClientConfig().read_timeout_ms == 5_000
    assert ClientConfig.from_properties({}) == ClientConfig()


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("addEntryTimeoutSecs", "7", "no key 'addEntryTimeoutSecs'; did you mean addEntryTimeoutSec?"),
        ("add_timeout_ms", "7", "no key 'add_timeout_ms'"),
        ("addEntryTimeoutSec", "soon", "addEntryTimeoutSec: 'soon' must be a whole number from 1 to 2147483"),
        ("addEntryTimeoutSec", "0", "addEntryTimeoutSec: '0' must be a whole number from 1 to 2147483"),
        ("addEntryTimeoutSec", "1.5", "'1.5' must be"),
        ("addEntryTimeoutSec", "", "'' must be"),
        ("addEntryTimeoutSec", "3000000", "'3000000' must be"),
        ("batchReadEnabled", "yes", "batchReadEnabled: 'yes' must be true or false"),
    ],
)
def test_what_is_refused(key: str, value: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        ClientConfig.from_properties({key: value})
    assert text in str(refused.value)


def test_values_given_directly_are_checked_too() -> None:
    with pytest.raises(InvalidArgumentError, match="read_timeout_ms: 0 must be a whole number from 1 to 2147483000"):
        ClientConfig(read_timeout_ms=0)
    with pytest.raises(InvalidArgumentError, match="batch_read_enabled: 1 must be true or false"):
        ClientConfig(batch_read_enabled=1)  # type: ignore[arg-type]


def test_every_setting_is_explained_and_has_a_key_of_its_own() -> None:
    assert [name for name, setting in SETTINGS.items() if not setting.doc.endswith(".")] == []
    assert len({setting.name for setting in SETTINGS.values()}) == len(SETTINGS) == len(fields(ClientConfig))


def test_every_default_can_be_written_as_a_property() -> None:
    for line in reference().splitlines():
        if line.startswith("| `"):
            key, _, field, default, *_ = (cell.strip().strip("`") for cell in line.strip("|").split("|"))
            if default:
                given = ClientConfig.from_properties({key: default})
                assert getattr(given, field) == getattr(ClientConfig(), field)


def test_the_page_is_up_to_date() -> None:
    assert _PAGE.read_text("utf-8") == reference(), "run: python -m bk_spark.bookie.config_page > docs/client-config.md"
