"""Rules of the data source, and of the questions that ``bkctl`` asks."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

MUTATIONS: Final = (
    Mutation(
        "Reads that an answer left over are no retries.",
        "bk_spark/protocol/ledger/reading/range_pass.py",
        "        again = bool(part.asked or part.failed)\n",
        "        again = bool(part.chunk.answers or part.asked or part.failed)\n",
        ("tests/unit/test_protocol_reader.py::test_only_what_another_bookie_was_asked_for_is_asked_again",),
    ),
    Mutation(
        "A timestamp without zone in a ledger has none in Spark, whatever the default of its release.",
        "bk_spark/datasource/pyspark_api.py",
        "prefer_timestamp_ntz=True",
        "prefer_timestamp_ntz=False",
        ("tests/spark/test_batch_arrow.py::test_ledgers_of_a_log",),
    ),
    Mutation(
        "Sums of tasks are new values.",
        "bk_spark/datasource/task_counts.py",
        "        found = dict(value1)\n",
        "        found = value1\n",
        ("tests/unit/test_stream_metrics.py::test_sums_of_tasks_are_bounded",),
    ),
    Mutation(
        "Tasks tell what they did, not what their worker has done so far.",
        "bk_spark/datasource/task_counts.py",
        "        done = tuple(now - then for now, then in zip",
        "        done = tuple(now for now, then in zip",
        ("tests/spark/test_stream_metrics.py::test_tasks_count_ledgers_and_retries",),
    ),
    Mutation(
        "Logs are compared with the schema of a query, each schema once.",
        "bk_spark/datasource/planning.py",
        "        if settings.schema_json in compared:\n",
        "        if compared:\n",
        ("tests/spark/test_stream_source_planning.py::test_each_schema_of_the_logs_is_compared",),
    ),
    Mutation(
        "A repeated first batch begins where it began the first time.",
        "bk_spark/datasource/stream/offsets.py",
        "        if position.start is not None:\n            return position.start\n",
        "        if position.start is not None and name not in self.positions:\n            return position.start\n",
        ("tests/unit/test_stream_offsets.py::test_where_a_batch_begins",),
    ),
    Mutation(
        "A checkpoint with an unknown field is refused.",
        "bk_spark/datasource/stream/offsets.py",
        "    if unknown:\n        raise refused(whole",
        "    if len(unknown) > 1:\n        raise refused(whole",
        ("tests/unit/test_stream_offsets.py::test_what_is_no_offset_is_refused",),
    ),
    Mutation(
        "Offsets that are gone before the query read them are an error.",
        "bk_spark/datasource/stream/plan.py",
        "        if before.offset < extent.first:\n            loss.gone(",
        "        if before.offset < extent.first and before.lost:\n            loss.gone(",
        ("tests/unit/test_stream_plan.py::test_what_was_removed_before_it_is_planned_is_an_error_or_counted_as_lost",),
    ),
    Mutation(
        "A log that was created again under its name is not read on.",
        "bk_spark/datasource/stream/plan.py",
        "    if expected != found:",
        "    if type(expected) is not type(found):",
        ("tests/unit/test_stream_plan.py::test_a_log_of_another_id",),
    ),
    Mutation(
        "Offsets never move back when the log seems shorter.",
        "bk_spark/datasource/stream/plan.py",
        "found[name] = Waiting(extent.identity, start, max(start, extent.end), start - before.offset)",
        "found[name] = Waiting(extent.identity, start, extent.end, start - before.offset)",
        ("tests/unit/test_stream_plan.py::test_an_end_that_is_told_later_is_no_loss",),
    ),
    Mutation(
        "Before Spark 4.2, a restarted query goes on where its checkpoint ends.",
        "bk_spark/datasource/stream/unlimited_reader.py",
        "        self._reached = end\n        return super()",
        "        return super()",
        ("tests/spark/test_unlimited_reader.py::test_s4_a_restart_goes_on_behind_the_checkpoint",),
    ),
    Mutation(
        "Before Spark 4.2, a batch takes all that waits: the trigger may be AvailableNow.",
        "bk_spark/datasource/stream/unlimited_reader.py",
        "self._reached = self._next(start, limited=False)",
        "self._reached = self._next(start, limited=True)",
        ("tests/spark/test_unlimited_reader.py::test_limits_have_no_effect_and_are_named_once",),
    ),
    Mutation(
        "The start of a log's first batch is kept until something was read.",
        "bk_spark/datasource/stream/plan.py",
        "positions[name] = Position(one.identity, ends[name], before.start, before.lost + one.lost)",
        "positions[name] = Position(one.identity, ends[name], None, before.lost + one.lost)",
        ("tests/unit/test_stream_plan.py::test_what_waits_and_where_the_batch_ends",),
    ),
    Mutation(
        "Entries that a lost ledger acknowledged are not sent to another one.",
        "bk_spark/log/tables/append_rows.py",
        "left = [piece.without(confirmed + 1 - first) for first, piece in self._kept]",
        "left = [piece.without(confirmed - first) for first, piece in self._kept]",
        ("tests/unit/test_datasource_write_task.py::test_the_range_ends_at_the_last_acknowledged_entry",),
    ),
    Mutation(
        "Rows for several logs are compared with the columns of logs as those for one log.",
        "bk_spark/log/tables/append_rows.py",
        "        names=form.names,\n",
        "        names=EXACT,\n",
        ("tests/unit/test_datasource_write_task.py::test_rows_for_several_logs_find_columns_as_those_for_one_do",),
    ),
    Mutation(
        "A wrong row is named by its number in the task.",
        "bk_spark/log/tables/routed_rows.py",
        "RowRun(self._row_number, end - start, order[start:end])",
        "RowRun(self._row_number, end - start)",
        (
            "tests/unit/test_datasource_write_task.py"
            "::test_a_wrong_row_has_its_number_in_the_task_whatever_log_it_names",
        ),
    ),
    Mutation(
        "What was lost of topics is counted.",
        "bk_spark/datasource/stream_metrics.py",
        'for kind in ("logs", "topics"):',
        'for kind in ("logs",):',
        ("tests/unit/test_stream_metrics.py::test_what_was_lost_is_counted_of_each_kind_of_source",),
    ),
    Mutation(
        "A task whose run was retired does not go on in another ledger.",
        "bk_spark/log/tables/append_rows.py",
        "        self._ledgers.check_run()\n",
        "",
        ("tests/unit/test_datasource_write_task.py::test_a_retired_run_ends_the_task",),
    ),
    Mutation(
        "A commit is of the batch that its tasks wrote for.",
        "bk_spark/datasource/stream/writer.py",
        "if request.batch_id != batchId:",
        "if request.batch_id > batchId:",
        ("tests/unit/test_datasource_stream_writer.py::test_messages_are_of_the_batch_that_is_committed",),
    ),
    Mutation(
        "A batch stays below maxEntriesPerTrigger.",
        "bk_spark/datasource/stream/limits.py",
        "to_share = limit - 1\n",
        "to_share = limit\n",
        ("tests/unit/test_stream_limits.py::test_limits_hold_and_everything_is_read_in_the_end",),
    ),
    Mutation(
        "Nothing is dropped without a clear yes.",
        "bk_spark/bkctl/logs/consent.py",
        'not in ("y", "yes"):',
        'in ("n", "no"):',
        ("tests/integration/test_bkctl_terminal.py::test_at_a_terminal_a_truncation_asks_and_only_yes_goes_on",),
    ),
    Mutation(
        "Without a terminal nothing is dropped unless --yes is given.",
        "bk_spark/bkctl/logs/consent.py",
        '        raise InvalidArgumentError(f"{loss}: give --yes to do so")\n',
        "        return\n",
        ("tests/integration/test_bkctl_terminal.py::test_without_a_terminal_nobody_is_asked_and_nothing_goes",),
    ),
    Mutation(
        "A bookie that runs is recovered only with --force.",
        "bk_spark/bkctl/members.py",
        "if running and not force:",
        "if len(running) > 1 and not force:",
        ("tests/unit/test_bkctl_recover.py::test_a_registered_bookie_needs_force",),
    ),
    Mutation(
        "A bookie that is unknown everywhere is not recovered.",
        "bk_spark/bkctl/members.py",
        "difference(self.registered, self.with_cookie, named))",
        "difference(self.registered, self.with_cookie, bookies))",
        ("tests/unit/test_bkctl_recover.py::test_a_bookie_is_known_by_cookie_registration_or_a_ledger",),
    ),
)
