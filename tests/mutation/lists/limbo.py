"""Rules of a bookie that lost data: marks, answers, and the check that ends limbo."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

_MARKING: Final = "tests/integration/test_limbo_marking.py"
_CHECK: Final = "tests/unit/test_limbo_check.py"
_OWN: Final = "tests/unit/test_own_ledgers.py"

MUTATIONS: Final = (
    Mutation(
        "An entry that a ledger in limbo lacks is unknown, not absent.",
        "bookie_server/entry_reader.py",
        "absent = Code.UNKNOWN_LEDGER_STATE if descriptor.limbo else Code.NO_ENTRY",
        "absent = Code.NO_ENTRY",
        (f"{_OWN}::test_limbo_ends_once_and_for_good",),
    ),
    Mutation(
        "Nobody knows the last entry of a ledger in limbo.",
        "bookie_server/entry_reader.py",
        "if not descriptor.limbo:  # in limbo",
        "if True:  # in limbo",
        (f"{_OWN}::test_limbo_ends_once_and_for_good",),
    ),
    Mutation(
        "The list of the entries of a ledger in limbo is unknown.",
        "bookie_server/bookie.py",
        "        if descriptor.limbo:\n            return Code.UNKNOWN_LEDGER_STATE, np.empty(0, np.int64)\n",
        "",
        (f"{_OWN}::test_limbo_ends_once_and_for_good",),
    ),
    Mutation(
        "Limbo outlives the process.",
        "bookie_server/storage/ledger_descriptors.py",
        "descriptor.limbo = header.limbo",
        "descriptor.limbo = False",
        (f"{_OWN}::test_limbo_ends_once_and_for_good",),
    ),
    Mutation(
        "The end of limbo is durable with the next flush.",
        "bookie_server/storage/ledger_descriptors.py",
        "        self.lac_loaded = False\n        self.header_dirty = True\n",
        "        self.lac_loaded = False\n",
        (f"{_OWN}::test_limbo_ends_once_and_for_good",),
    ),
    Mutation(
        "A location in an entry log that is lost or too short is no copy.",
        "bookie_server/integrity/own_ledgers.py",
        "(locations != 0) & ((locations & OFFSET_MASK) + MIN_RECORD_BYTES <= ends[which])",
        "(locations != 0) & (ends[which] >= 0)",
        (f"{_OWN}::test_what_is_in_memory_and_in_entry_logs_that_exist",),
    ),
    Mutation(
        "A ledger that may have lost its end is recovered before it is checked.",
        "bookie_server/integrity/limbo_check.py",
        "return metadata.state is not LedgerState.CLOSED and bookie_id in metadata.last_segment.ensemble",
        "return False",
        (
            f"{_CHECK}::test_c5_an_open_ledger_is_recovered_before_anything_is_copied",
            f"{_CHECK}::test_c5_limbo_lasts_while_the_end_of_the_ledger_is_unknown",
        ),
    ),
    Mutation(
        "A bookie that was not fenced ends nobody's ledger.",
        "bookie_server/integrity/limbo_check.py",
        "own.in_limbo and own.fenced and",
        "own.in_limbo and",
        (f"{_CHECK}::test_a_bookie_that_came_into_the_last_segment_after_it_was_marked_ends_nobodys_ledger",),
    ),
    Mutation(
        "A ledger that lacks entries stays in limbo.",
        "bookie_server/integrity/limbo_check.py",
        "        if self._problems:\n            return NotWhole(summary(self._problems))\n",
        "",
        (
            f"{_CHECK}::test_an_entry_that_nobody_has_keeps_the_ledger_in_limbo",
            f"{_CHECK}::test_a_bookie_that_takes_no_copies_stays_in_limbo",
        ),
    ),
    Mutation(
        "A ledger that cannot be made whole is tried again.",
        "bookie_server/integrity/data_check.py",
        "                self._actions.append(StartTimer(ledger_id, pause_ms))\n",
        "",
        (
            "tests/unit/test_data_check.py::"
            "test_what_cannot_be_made_whole_is_tried_again_after_growing_pauses_and_holds_up_nobody",
        ),
    ),
    Mutation(
        "Every ledger that names the bookie is marked, not only open ones.",
        "bookie_server/integrity/marking.py",
        "if not any(self._bookie_id in segment.ensemble for segment in metadata.segments):",
        "if not votes_about_end(metadata, self._bookie_id):",
        (f"{_MARKING}::test_c6_every_ledger_that_names_the_bookie_is_marked",),
    ),
    Mutation(
        "An open ledger is fenced after a loss.",
        "bookie_server/integrity/marking.py",
        "votes or (found is not None and found.fenced)",
        "found is not None and found.fenced",
        (f"{_MARKING}::test_c6_every_ledger_that_names_the_bookie_is_marked",),
    ),
    Mutation(
        "A replaced directory is stamped only after all marks are durable.",
        "bookie_server/identity/cookies.py",
        "[each for each in lost if each not in self._unchecked], _UNCHECKED_FILE)",
        "[each for each in lost if each not in self._unchecked])",
        (f"{_MARKING}::test_a_power_failure_anywhere_leaves_all_ledgers_marked_or_a_start_to_be_repeated",),
    ),
    Mutation(
        "A replaced directory that comes back is refused.",
        "bookie_server/identity/cookies.py",
        "        if len(found) > 1:\n            have",
        "        if len(found) > 2:\n            have",
        (f"{_MARKING}::test_c6_a_replaced_directory_that_comes_back_is_refused",),
    ),
    Mutation(
        "A loss is remembered until ledgers were marked.",
        "bookie_server/identity/dirty.py",
        "last.may_have_lost and not losses_handled",
        "last.may_have_lost and False",
        ("tests/unit/test_bookie_dirty.py::test_a_loss_is_remembered_until_ledgers_are_marked",),
    ),
)
