"""Rules of the admin API."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

_HTTP: Final = "tests/unit/test_admin_http.py"
_OVERVIEW: Final = "tests/unit/test_overview.py"

MUTATIONS: Final = (
    Mutation(
        "What a browser remembers changes nothing.",
        "bookie_server/admin/access.py",
        'shown = credentials if scheme == "bearer" else ""',
        'shown = credentials if scheme == "bearer" else _password(credentials)',
        (f"{_HTTP}::test_changes_need_the_token_always",),
    ),
    Mutation(
        "The token for reads changes nothing.",
        "bookie_server/admin/access.py",
        "if not self._changes.is_shown(shown):",
        "if not self._changes.is_shown(shown) and not (self._reads and self._reads.is_shown(shown)):",
        (f"{_HTTP}::test_a_token_for_reads",),
    ),
    Mutation(
        "Without a token nothing is changed.",
        "bookie_server/admin/access.py",
        "if self._changes is None:\n            raise HttpError(",
        "if self._changes is None:\n            return\n            raise HttpError(",
        (f"{_HTTP}::test_without_a_token_file_nothing_is_changed",),
    ),
    Mutation(
        "Over gRPC, too, changes need the token that is for them.",
        "bookie_server/net/grpc/access/admission.py",
        "(tokens.check_change if changes else tokens.check_reading)(",
        "tokens.check_reading(",
        ("tests/integration/test_grpc_admin.py::test_with_tokens",),
    ),
    Mutation(
        "A caller without a name needs the token in any case.",
        "bookie_server/net/grpc/access/admission.py",
        "if access.names:",
        "if True:",
        ("tests/integration/test_grpc_admin.py::test_a_caller_without_a_name_needs_the_token_in_any_case",),
    ),
    Mutation(
        "A token gives no right.",
        "bookie_server/net/grpc/access/admission.py",
        "if not access.may(ADMIN):",
        "if False:",
        ("tests/integration/test_grpc_admin.py::test_with_rights",),
    ),
    Mutation(
        "Whoever has sent no whole request gives way.",
        "bookie_server/admin/places.py",
        "if len(self._arriving) > MAX_ARRIVING:\n            self._has_come = True",
        "if False:\n            self._has_come = True",
        (f"{_HTTP}::test_slow_callers_give_way_and_liveness_answers",),
    ),
    Mutation(
        "A burst of connections has a bound.",
        "bookie_server/admin/places.py",
        "self._make_room(self._arriving, MAX_ARRIVING + MAX_BURST)",
        "pass",
        (f"{_HTTP}::test_a_burst_has_a_bound",),
    ),
    Mutation(
        "Who gives way is closed after the burst.",
        "bookie_server/admin/places.py",
        "0 if self._has_come else min(_CLOSED_AT_ONCE, len(self._arriving) - MAX_ARRIVING)",
        "len(self._arriving) - MAX_ARRIVING",
        (f"{_HTTP}::test_a_burst_gives_way_after_whoever_came_with_it_is_served",),
    ),
    Mutation(
        "Whoever does not read the response gives way.",
        "bookie_server/admin/places.py",
        "self._make_room(self._answered, MAX_ANSWERED)",
        "pass",
        (f"{_HTTP}::test_callers_that_do_not_read_give_way",),
    ),
    Mutation(
        "Who sends a head bit by bit remains a bare socket.",
        "bookie_server/admin/heads.py",
        "return len(first) + (not is_ready)",
        "return len(first)",
        (f"{_HTTP}::test_n1_who_sends_a_head_bit_by_bit_remains_a_bare_socket",),
    ),
    Mutation(
        "Who sends bit by bit keeps nobody in the kernel.",
        "bookie_server/net/common/entrance/newcomers.py",
        "self._silent.ready_first >= self._most_ready",
        "self._silent.ready_count >= self._most_ready",
        ("tests/unit/test_net_connections.py::test_n1_who_sends_bit_by_bit_keeps_nobody_in_the_kernel",),
    ),
    Mutation(
        "Liveness needs no place among requests.",
        "bookie_server/admin/server.py",
        "if request.path in OPEN_PATHS:",
        "self.places.require_room()\n        if request.path in OPEN_PATHS:",
        (f"{_HTTP}::test_slow_callers_give_way_and_liveness_answers",),
    ),
    Mutation(
        "A probe has no task of its own.",
        "bookie_server/admin/server.py",
        "            return await _guarded(handler, request)\n        self.places.require_room()",
        "            pass\n        else:\n            self.places.require_room()",
        (f"{_HTTP}::test_a_probe_is_answered_without_a_task_of_its_own",),
    ),
    Mutation(
        "An answer serves others, too, for some seconds.",
        "bookie_server/admin/cluster_page.py",
        "return not failed and time.monotonic() - self._collected_s < _SERVED_S",
        "return False",
        (f"{_OVERVIEW}::test_ten_open_pages_cost_one_collection",),
    ),
)
