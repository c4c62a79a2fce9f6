"""Options, times and JSON as offsets."""

from __future__ import annotations

import bisect
import logging
import re

import pytest

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.options.parse import parse_options
from bk_spark.datasource.options.positions import batch_ranges, start_offsets
from bk_spark.log.positions.bounds import Bounds
from bk_spark.log.positions.texts import Edge
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError, LogRangeGoneError

URI = "zk://127.0.0.1:2181/ledgers"
#: Log a has an entry each at 1000, 1010, … ms, the first at offset 5; log b is empty.
TIMES_MS = list(range(1000, 1100, 10))


def _offset_at(time_ms: int) -> int:
    return 5 + bisect.bisect_left(TIMES_MS, time_ms)


BOUNDS = {"a": Bounds(5, 15, _offset_at), "b": Bounds(7, 7, lambda time_ms: 7)}


def _options(streaming: bool = False, **options: str) -> SourceOptions:
    return parse_options({"metadataServiceUri": URI, "logs": "a,b", **options}, writing=False, streaming=streaming)


def _refused(kind: type[BookKeeperError], **options: str) -> str:
    with pytest.raises(kind) as raised:
        batch_ranges(_options(**options), BOUNDS)
    return str(raised.value)


@pytest.mark.parametrize(
    ("options", "a", "b"),
    [
        ({}, (5, 15), (7, 7)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, (5, 15), (7, 7)),
        ({"startingOffsets": '{"a": 8, "b": 7}'}, (8, 15), (7, 7)),
        ({"endingOffsets": '{"a": 8, "b": 7}'}, (5, 8), (7, 7)),
        ({"startingOffsets": '{"a": -2, "b": -2}', "endingOffsets": '{"a": -1, "b": -1}'}, (5, 15), (7, 7)),
        ({"startingOffsets": '{"a": 15, "b": 7}'}, (15, 15), (7, 7)),
        ({"startingTimestamp": "1020"}, (7, 15), (7, 7)),
        ({"startingTimestamp": "1021"}, (8, 15), (7, 7)),
        ({"startingTimestamp": "5000"}, (15, 15), (7, 7)),
        ({"endingTimestamp": "1020"}, (5, 7), (7, 7)),
        ({"endingTimestamp": "0"}, (5, 5), (7, 7)),
        ({"startingTimestamp": "1010", "endingTimestamp": "1030"}, (6, 8), (7, 7)),
        ({"startingTimestamp": "1010", "endingOffsets": '{"a": 9, "b": -1}'}, (6, 9), (7, 7)),
        (
            {"startingOffsetsByTimestamp": '{"a": 1020, "b": 1}', "startingOffsetsByTimestampStrategy": "latest"},
            (7, 15),
            (7, 7),
        ),
        ({"endingOffsetsByTimestamp": '{"a": "1970-01-01T00:00:01.021Z", "b": 5000}'}, (5, 8), (7, 7)),
        ({"endingOffsetsByTimestamp": '{"a": 5000, "b": 0}'}, (5, 15), (7, 7)),
    ],
    ids=str,
)
def test_ranges(options: dict[str, str], a: tuple[int, int], b: tuple[int, int]) -> None:
    assert batch_ranges(_options(**options), BOUNDS) == {"a": a, "b": b}


def test_a_stream_starts_where_it_is_told() -> None:
    assert start_offsets(_options(streaming=True), BOUNDS, Edge.LATEST) == {"a": 15, "b": 7}
    assert start_offsets(_options(streaming=True, startingOffsets="earliest"), BOUNDS, Edge.LATEST) == {"a": 5, "b": 7}
    given = _options(streaming=True, startingOffsets='{"a": -1, "b": -2}')
    assert start_offsets(given, BOUNDS, Edge.LATEST) == {"a": 15, "b": 7}


def test_a_log_that_is_not_read() -> None:
    text = _refused(InvalidArgumentError, startingOffsets='{"a": 8, "b": 7, "c": 1}')
    assert text == "option startingOffsets names log c, which this read does not include; it includes a, b"


def test_a_log_that_is_left_out() -> None:
    text = _refused(InvalidArgumentError, endingOffsets='{"a": 8}')
    assert text.startswith(
        "option endingOffsets has no offset for log b: give each an offset, or -2 for its first, or -1"
    )


def test_many_names_are_not_all_told() -> None:
    bounds = {f"log-{number}": Bounds(0, 1) for number in range(1000)}
    with pytest.raises(InvalidArgumentError) as raised:
        batch_ranges(_options(startingOffsets='{"x": 1}'), bounds)
    assert str(raised.value).endswith("log-9 and 990 more")


def test_an_offset_below_the_first() -> None:
    text = _refused(LogRangeGoneError, startingOffsets='{"a": 2, "b": -2}')
    assert text == (
        "option startingOffsets gives log a offset 2: offsets 2 to 4 are gone, it starts at 5; give "
        "another, or set failOnDataLoss to false to read the rest"
    )


def test_an_offset_beyond_the_end() -> None:
    text = _refused(LogRangeGoneError, endingOffsets='{"a": 16, "b": -1}')
    assert "option endingOffsets gives log a offset 16: it ends at 15, offset 15 is not written yet" in text


def test_without_fail_on_data_loss_it_is_said_and_skipped(caplog: pytest.LogCaptureFixture) -> None:
    options = _options(startingOffsets='{"a": 2, "b": 1}', endingOffsets='{"a": 99, "b": 3}', failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert batch_ranges(options, BOUNDS) == {"a": (5, 15), "b": (7, 7)}
    assert len(caplog.records) == 4
    assert "gives log a offset 2: offsets 2 to 4 are gone, it starts at 5; continuing at 5" in caplog.text


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (
            {"startingOffsets": '{"a": 9, "b": 7}', "endingOffsets": '{"a": 8, "b": 7}'},
            "startingOffsets and endingOffsets",
        ),
        ({"startingTimestamp": "1050", "endingTimestamp": "1020"}, "startingTimestamp and endingTimestamp"),
        ({"startingTimestamp": "1050", "endingOffsets": '{"a": 6, "b": 7}'}, "startingTimestamp and endingOffsets"),
        (
            {"startingOffsets": '{"a": 9, "b": 7}', "endingOffsetsByTimestamp": '{"a": 1000, "b": 1}'},
            "startingOffsets and endingOffsetsByTimestamp",
        ),
    ],
    ids=str,
)
def test_a_start_after_the_end(options: dict[str, str], names: str) -> None:
    text = _refused(InvalidArgumentError, **options)
    assert "the read of log a starts at " in text
    assert text.endswith(f"check {names}")


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({"startingOffsetsByTimestamp": '{"a": 1020, "b": 1}'}, True),
        ({"startingOffsetsByTimestamp": '{"a": 1020, "b": 1}', "startingOffsetsByTimestampStrategy": "error"}, True),
        ({"startingOffsetsByTimestamp": '{"a": 1020, "b": 1}', "startingOffsetsByTimestampStrategy": "latest"}, False),
        ({"startingTimestamp": "1020"}, False),
        ({"startingTimestamp": "1020", "startingOffsetsByTimestampStrategy": "latest"}, False),
        ({"startingTimestamp": "1020", "startingOffsetsByTimestampStrategy": "error"}, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("streaming", [True, False])
def test_a_start_at_a_time_without_entries(options: dict[str, str], is_refused: bool, streaming: bool) -> None:
    given = _options(streaming, **options)
    if not is_refused:
        assert start_offsets(given, BOUNDS, Edge.LATEST) == {"a": 7, "b": 7}
        return
    with pytest.raises(InvalidArgumentError) as raised:
        start_offsets(given, BOUNDS, Edge.LATEST)
    assert re.fullmatch(
        "option starting[a-zA-Z]+ gives log b the time 1970-01-01T00:00:0[0-9.]+Z: no entry was committed then or "
        "later, it ends at offset 7; give an earlier time, or set startingOffsetsByTimestampStrategy to latest to "
        "start at the end",
        str(raised.value),
    )


def test_times_name_every_log() -> None:
    text = _refused(InvalidArgumentError, startingOffsetsByTimestamp='{"a": 1000}')
    assert text == "option startingOffsetsByTimestamp has no time for log b: give each one"
    text = _refused(InvalidArgumentError, endingOffsetsByTimestamp='{"a": 1000, "b": 1, "z": 1}')
    assert text.startswith("option endingOffsetsByTimestamp names log z, which this read does not include")


class TestLedgers:
    def _ranges(self, **options: str) -> dict[str, tuple[int, int]]:
        given = {"metadataServiceUri": URI, "ledgerIds": "17,18", **options}
        return batch_ranges(parse_options(given, writing=False), {"17": Bounds(0, 100), "18": Bounds(0, 0)})

    def test_entry_ids(self) -> None:
        assert self._ranges() == {"17": (0, 100), "18": (0, 0)}
        assert self._ranges(startingOffsets='{"17": 10, "18": -2}') == {"17": (10, 100), "18": (0, 0)}

    def test_errors_speak_of_ledgers(self) -> None:
        with pytest.raises(
            LogRangeGoneError, match="gives ledger 17 entry 101: it ends at 100, entry 100 is not written"
        ):
            self._ranges(endingOffsets='{"17": 101, "18": -1}')
        with pytest.raises(InvalidArgumentError, match="names ledger 3, which this read does not include; it"):
            self._ranges(endingOffsets='{"3": 1}')
