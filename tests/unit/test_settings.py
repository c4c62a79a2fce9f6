"""How a setting is read and checked, and what is said of wrong values."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.settings.kinds import (
    BOOLEAN,
    OPTIONAL_TEXT,
    PASSWORD,
    TEXT,
    Kind,
    WrongValueError,
    choice,
    did_you_mean,
    duration,
    fraction,
    size,
    whole,
)
from bk_spark.settings.setting import Setting, check_fields, declare, markdown_table, settings_of

ODD_NUMBERS = ("31_81", "+5", "\u0663\u0661", "\uff15", "0x10", "5L", "1 000", "1,000", "- 5", "--5", "")


@dataclass(frozen=True)
class Config:
    timeout_ms: int | None = declare(Setting("timeoutSec", "5", whole(1, 60, unit=1000, off=None), "How long."))
    share: float = declare(Setting("share", "0.5", fraction(off=0.0), "How much.", missing="half"))
    password: str = declare(Setting("password", None, PASSWORD, "Secret.", secret=True), absent="")
    plain: int = 3


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (whole(1, 60, unit=1000), "60", 60_000),
        (whole(off=None), "-7", None),
        (whole(-1, 5), "-1", -1),
        (fraction(), "1", 1.0),
        (fraction(off=0.0), "-0.5", 0.0),
        (whole(), " 010\t", 10),
        *((fraction(), text, 0.5) for text in ("0.5", ".5", " 5e-1 ", "0.05E+1")),
        (size(1, 2**40), "2 K", 2048),
        (duration(1, 10**9), "2min", 120_000),
        (BOOLEAN, " True ", True),
        (OPTIONAL_TEXT, "  ", ""),
        (PASSWORD, " a ", " a "),
        (choice({"none": None, "LZ4": 4}), "lz4", 4),
        (choice({"none": None, "LZ4": 4}), "None", None),
    ],
)
def test_texts_that_are_taken(kind: Kind, text: str, value: object) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "wrong"),
    [
        (whole(1, 60), "0", "must be a whole number from 1 to 60"),
        (whole(1, 60), "61", "must be a whole number from 1 to 60"),
        (whole(), "1.5", "must be a whole number from 0 to 2³¹ - 1"),
        (whole(), "-1", "must be a whole number from 0 to 2³¹ - 1"),
        (whole(off=0), "x", "must be a whole number from 0 to 2³¹ - 1, or below 0: off"),
        (fraction(), "nan", "must be a number from 0 to 1"),
        (fraction(), "1e-9999", "must be a number from 0 to 1"),
        # Python takes these.
        *((whole(), text, "must be a whole number from 0 to 2³¹ - 1") for text in ODD_NUMBERS),
        *((fraction(0, 10_000), text, "must be a number from 0 to 10000") for text in ODD_NUMBERS),
        (whole(), "9" * 5_000, "must be a whole number from 0 to 2³¹ - 1"),
        (size(10, 20), "9", "must be from 10 to 20 bytes"),
        (size(10, 20), "1x", "must be a number of bytes, or one with k, m or g"),
        (size(10, 20), "9" * 5_000, "must be a number of bytes, or one with k, m or g"),
        (duration(10, 20), "9" * 5_000 + "s", "must be a number with a unit: ms, s, m, h or d"),
        (duration(10, 20), "21ms", "must be from 10 to 20 ms"),
        (TEXT, "", "is empty"),
        (BOOLEAN, "1", "must be true or false"),
        (choice({"raw": 1, "arrow": 2}), "arow", "must be one of raw, arrow; did you mean arrow?"),
    ],
)
def test_texts_that_are_refused(kind: Kind, text: str, wrong: str) -> None:
    with pytest.raises(WrongValueError) as raised:
        kind.parse(text)
    assert str(raised.value) == wrong


def test_fields_have_the_defaults_of_their_settings() -> None:
    config = Config()
    assert (config.timeout_ms, config.share, config.password) == (5000, 0.5, "")
    assert list(settings_of(Config)) == ["timeout_ms", "share", "password"]
    assert "password" not in repr(Config(password="hunter2"))


@pytest.mark.parametrize("value", [1, 60_000, None])
def test_values_of_programs_that_fit(value: int | None) -> None:
    check_fields(Config(timeout_ms=value))


@pytest.mark.parametrize("value", [0, 60_001, True, "5", 1.5])
def test_values_of_programs_that_do_not_fit_name_the_field_in_its_unit(value: object) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        check_fields(Config(timeout_ms=value))  # type: ignore[arg-type]
    assert str(raised.value) == f"timeout_ms: {value!r} must be a whole number from 1 to 60000, or below 0: off"


def test_an_error_has_place_name_and_text_unless_it_is_secret() -> None:
    setting = Setting("old", None, whole(1, 2), "…", other_name="older")
    with pytest.raises(InvalidArgumentError, match=r"^a\.conf: older: '3' must be a whole number from 1 to 2$"):
        setting.parse("3", "a.conf: ", "older")
    with pytest.raises(InvalidArgumentError, match="^option pin: must be a whole number from 1 to 2$"):
        Setting("pin", None, whole(1, 2), "…", secret=True).parse("31", "option ")


def test_the_nearest_name() -> None:
    assert did_you_mean("TimeOut", ["timeoutSec", "share"]) == "; did you mean timeoutSec?"
    assert did_you_mean("zzz", ["timeoutSec", "share"]) == ""


def test_a_table_has_a_row_for_each_setting() -> None:
    columns = {"key": lambda field, one: f"{field}/{one.name}", "x": lambda _, one: one.missing}
    assert markdown_table(columns, settings_of(Config), centred=["x"]) == [
        "| key | x |",
        "|---|:-:|",
        "| timeout_ms/timeoutSec |  |",
        "| share/share | half |",
        "| password/password |  |",
    ]
    assert len(fields(Config)) == 4
