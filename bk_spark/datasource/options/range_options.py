"""The options that say which part of logs, or of ledgers, a read reads."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from bk_spark.datasource.options.option import Group, Use, option
from bk_spark.datasource.options.values import AS_OF, POSITIONS, TIMES, TIMESTAMP
from bk_spark.log.positions.texts import AsOfs, Positions, Time
from bk_spark.settings.kinds import BOOLEAN, choice


class NoMatch(enum.Enum):
    """What a start at a time means if no entry was committed then or later."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """Where a read starts and ends."""

    starting_offsets: Positions | None = option(
        "startingOffsets",
        None,
        POSITIONS,
        Use.READ,
        Group.RANGE,
        '`earliest`, `latest` (streams only), or JSON with the first offset of each log: `{"events": 100}`. '
        "-2 is the first offset of the log, -1 its end. For ledgers: entry ids by ledger id. "
        "Default: `earliest` for a batch, `latest` for a stream. Ignored when a checkpoint exists.",
    )
    starting_timestamp: Time | None = option(
        "startingTimestamp",
        None,
        TIMESTAMP,
        Use.READ,
        Group.RANGE,
        "Start at the first entry committed at this time or later. Milliseconds since 1970 (UTC), or ISO 8601 such as "
        "`2026-01-31T12:00:00Z` (UTC if it names no zone). "
        "A date alone is its midnight. Starts at the end if no such entry exists yet. Not for ledgers.",
    )
    starting_times: Positions | None = option(
        "startingOffsetsByTimestamp",
        None,
        TIMES,
        Use.READ,
        Group.RANGE,
        'Like startingTimestamp, with a time for each log: `{"events": 1769860800000, "clicks": '
        '"2026-01-31T12:00:00Z"}`.',
    )
    starting_time_strategy: NoMatch | None = option(
        "startingOffsetsByTimestampStrategy",
        None,
        choice({one.value: one for one in NoMatch}),
        Use.READ,
        Group.RANGE,
        "If no entry was committed at the time of startingTimestamp or startingOffsetsByTimestamp, or later: `error`, "
        "or `latest`, which starts at the end. Default: `latest` for startingTimestamp, `error` for "
        "startingOffsetsByTimestamp.",
    )
    ending_offsets: Positions | None = option(
        "endingOffsets",
        None,
        POSITIONS,
        Use.BATCH_READ,
        Group.RANGE,
        "`latest`, or JSON with the end offset of each log. The end offset itself is not read. -1 is the end. "
        "Default: `latest`, which is everything confirmed when the read is planned, also in an open tail.",
    )
    ending_timestamp: Time | None = option(
        "endingTimestamp",
        None,
        TIMESTAMP,
        Use.BATCH_READ,
        Group.RANGE,
        "End before the first entry committed at this time or later. Same format as startingTimestamp. "
        "Not for ledgers.",
    )
    ending_times: Positions | None = option(
        "endingOffsetsByTimestamp",
        None,
        TIMES,
        Use.BATCH_READ,
        Group.RANGE,
        "Like endingTimestamp, with a time for each log. Same format as startingOffsetsByTimestamp.",
    )
    as_of: AsOfs | None = option(
        "asOf",
        None,
        AS_OF,
        Use.BATCH_READ,
        Group.RANGE,
        "Read the log as a commit left it: the one with this offset (`100`), the last one at this time or before "
        "(`2026-01-31T12:00:00Z`), or a transaction (`nightly:7`, txnAppId and txnVersion). JSON for several logs. "
        "`offset:`, `time:` or `txn:` before it says which one is meant. Not for ledgers. See "
        "[delivery.md](delivery.md#earlier-states).",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        "true",
        BOOLEAN,
        Use.READ,
        Group.RANGE,
        "Whether requested offsets that are no longer in the log are an error. "
        "With `false` they are skipped, and a warning names them.",
    )
    push_down_filters: bool = option(
        "pushDownFilters",
        "false",
        BOOLEAN,
        Use.BATCH_READ,
        Group.RANGE,
        "Use conditions on `offset`, `ledgerId` and `timestamp` to read less. Set it only if Spark's "
        "`spark.sql.python.filterPushdown.enabled` is `true`; otherwise every read fails. No effect before Spark 4.1.",
    )
