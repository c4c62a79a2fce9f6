"""Rules of logs as tables without Spark, and of logs with asyncio."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

_READS: Final = "tests/unit/test_ordered_reads.py"
_TABLES: Final = "tests/integration/test_log_tables.py"

_GROWTH: Final = "tests/integration/test_log_tables_growth.py"

MUTATIONS: Final = (
    Mutation(
        "After a write that merges columns, the log's object knows them.",
        "bk_spark/log/tables/write.py",
        "    if options.merge_schema:\n        log.learn_settings()\n    look_after(log)",
        "    look_after(log)",
        (f"{_GROWTH}::test_new_columns_are_null_in_older_rows",),
    ),
    Mutation(
        "A raw log refuses what it has not.",
        "bk_spark/log/tables/write.py",
        "        if is_given:\n",
        "        if False:\n",
        (f"{_GROWTH}::test_a_raw_log_refuses_what_it_cannot_do",),
    ),
    Mutation(
        "What waits for the reader of a scan is bounded.",
        "bk_spark/log/tables/ordered_reads.py",
        "return self._bytes + cost <= self._buffer_bytes or (",
        "return True or (",
        (f"{_READS}::test_what_waits_is_bounded_and_the_source_that_is_due_goes_on",),
    ),
    Mutation(
        "An error of a part of a scan is raised where its rows would be.",
        "bk_spark/log/tables/ordered_reads.py",
        "begun.ended, begun.error = True, error",
        "begun.ended, begun.error = True, None",
        (f"{_READS}::test_an_error_comes_in_its_place",),
    ),
    Mutation(
        "A scan of a few columns does not keep the memory of the others.",
        "bk_spark/log/tables/scan.py",
        "is_narrow = not {*stored} <= {*self._schema.names}",
        "is_narrow = False",
        (f"{_TABLES}::test_a_few_columns_do_not_hold_on_to_the_others",),
    ),
    Mutation(
        "A column of a log's own goes before one that says where rows come from.",
        "bk_spark/log/tables/scan.py",
        "METADATA_NAMES & {*stored}",
        "METADATA_NAMES & {''}",
        (f"{_TABLES}::test_a_column_of_the_logs_own_goes_before_one_that_says_where_rows_come_from",),
    ),
    Mutation(
        "A write without Spark that is repeated is in the log once.",
        "bk_spark/log/tables/write.py",
        "anonymous=options.txn_app_id is None",
        "anonymous=True",
        (f"{_TABLES}::test_a_repeated_write_is_in_the_log_once",),
    ),
    Mutation(
        "A write without Spark casts no column to another type.",
        "bk_spark/log/tables/table_data.py",
        "if found.field(column.name).type != column.type:",
        "if False:",
        (f"{_TABLES}::test_columns_that_do_not_fit",),
    ),
    Mutation(
        "The collation of a string is part of its type.",
        "bk_spark/log/entries/schema_text.py",
        "if found == _STRING and path in collations:",
        "if False:",
        ("tests/unit/test_log_schemas.py::test_its_name_is_sparks",),
    ),
    Mutation(
        "A call in a thread has ended when its cancellation goes on.",
        "bk_spark/log/aio/threads.py",
        "        await asyncio.wait([call])\n",
        "",
        (
            "tests/unit/test_async_threads.py::"
            "test_a_generator_that_is_given_up_while_it_runs_is_closed_when_it_has_given_its_item",
        ),
    ),
    Mutation(
        "Work on the client's thread has ended when the cancellation of its caller goes on.",
        "bk_spark/bookie/loop_thread.py",
        "                await asyncio.wait([ended])\n            ended.exception()  # nobody else will ask for it\n",
        "",
        ("tests/integration/test_async_logs.py::test_followers_end_when_nothing_comes_and_when_they_are_cancelled",),
    ),
)
