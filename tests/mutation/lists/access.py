"""Rules of who may use a bookie, on both sides."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

_FRONT: Final = "tests/unit/test_net_access.py"
_CLIENT: Final = "tests/unit/test_client_logins.py"
_DIGEST: Final = "tests/unit/test_protocol_digest_md5.py"
_RIGHTS: Final = "tests/unit/test_net_authorization.py"
_GRPC: Final = "tests/unit/test_grpc_logins.py"
_MACHINE: Final = "bk_spark/protocol/auth/digest_md5.py"

MUTATIONS: Final = (
    Mutation(
        "Nothing is obeyed before a login, or for a role that is not allowed.",
        "bookie_server/net/native/gate.py",
        "return self._access is not None and self._access.is_allowed",
        "return self._access is not None",
        (
            f"{_FRONT}::test_nothing_is_obeyed_before_a_login",
            f"{_FRONT}::test_requests_of_other_roles_are_refused",
        ),
    ),
    Mutation(
        "Nor is it over gRPC.",
        "bookie_server/net/grpc/server.py",
        "            access = await admit(self._shared, context)\n            if access",
        "            access = None\n            if access",
        ("tests/unit/test_net_grpc_tls.py::test_callers_without_the_role_are_refused",),
    ),
    Mutation(
        "A session over gRPC counts on the connection of its login alone.",
        "bookie_server/net/grpc/access/sessions.py",
        "for session in self._sessions.get(peer, ()):",
        "for session in sum(self._sessions.values(), []):",
        (f"{_GRPC}::test_a_session_is_of_no_use_elsewhere_or_later",),
    ),
    Mutation(
        "Callers on one connection need their own sessions.",
        "bookie_server/net/grpc/access/sessions.py",
        "if hmac.compare_digest(session.token, token):",
        "if True:",
        (f"{_GRPC}::test_a_session_is_of_no_use_elsewhere_or_later",),
    ),
    Mutation(
        "A session ends with the call of its login.",
        "bookie_server/net/grpc/access/logins.py",
        "            self._sessions.end(session)",
        "            pass",
        (f"{_GRPC}::test_a_session_is_of_no_use_elsewhere_or_later",),
    ),
    Mutation(
        "Who logs in again and again loses its own sessions.",
        "bookie_server/net/grpc/access/sessions.py",
        "max(self._sessions.values(), key=len)[0]",
        "next(iter(self._sessions.values()))[0]",
        (f"{_GRPC}::test_the_connection_with_the_most_sessions_loses_its_oldest",),
    ),
    Mutation(
        "A call ends whose next message never comes whole.",
        "bookie_server/net/grpc/gate.py",
        "self._patience_s = self.message_s",
        "self._patience_s = None",
        ("tests/unit/test_net_grpc_places.py::test_a_later_message_that_never_comes_ends_the_call",),
    ),
    Mutation(
        "A call on which an answer is owed is not idle.",
        "bk_spark/bookie/connection/grpc_streams.py",
        "                if self._is_owed():\n",
        "                if False:\n",
        ("tests/unit/test_client_grpc.py::test_calls_that_are_idle_end_and_begin_again",),
    ),
    Mutation(
        "A client believes a bookie only when the login has ended well.",
        "bk_spark/bookie/connection/grpc_logins.py",
        "        if not self._session:\n",
        "        if False:\n",
        (f"{_GRPC}::test_a_peer_that_is_no_bookie_of_ours",),
    ),
    Mutation(
        "Of the roles in a certificate the first one counts.",
        "bookie_server/net/common/access/certificates.py",
        '.split(",")[0]',
        '.split(",")[-1]',
        (f"{_FRONT}::test_roles_are_found_where_apaches_bookie_finds_them",),
    ),
    Mutation(
        "Of the OUs in a certificate the first one counts.",
        "bookie_server/net/common/access/certificates.py",
        "units[0].value.split",
        "units[-1].value.split",
        (f"{_FRONT}::test_roles_are_found_where_apaches_bookie_finds_them",),
    ),
    Mutation(
        "A failed login closes the connection.",
        "bookie_server/net/native/admission.py",
        "            refuse()\n            self._connection.hang_up()\n",
        "            refuse()\n",
        (f"{_FRONT}::test_a_wrong_login_is_answered_and_the_connection_closed",),
    ),
    Mutation(
        "A login ends in time.",
        "bookie_server/net/native/admission.py",
        "        gate.give_up()\n        self._connection.abort()\n",
        "        gate.give_up()\n",
        (f"{_FRONT}::test_a_login_without_end_is_given_up",),
    ),
    Mutation(
        "A connection that has not logged in gives way to newcomers.",
        "bookie_server/net/native/connection.py",
        "if (frames is not None or self._has_large) and self._admission.gate is None:",
        "if frames is not None or self._has_large:",
        (f"{_FRONT}::test_a_connection_that_has_not_logged_in_gives_way",),
    ),
    Mutation(
        "Only an empty first message of SASL may come before the handshake.",
        "bk_spark/protocol/wire/auth_frames.py",
        'return auth_of(body) == AuthMessage(SASL, b"")',
        "return auth_of(body) is not None",
        (f"{_FRONT}::test_nothing_else_may_come_in_clear_behind_start_tls",),
    ),
    Mutation(
        "Users that saslJaasClientAllowedIds does not match are refused.",
        "bk_spark/bookie/auth/sasl.py",
        "if self._allowed.fullmatch(user) is None:",
        "if self._allowed.search('bookkeeper') is None:",
        (f"{_FRONT}::test_a_wrong_login_is_answered_and_the_connection_closed",),
    ),
    Mutation(
        "A response answers one nonce.",
        _MACHINE,
        '            ("nonce", self._nonce),\n',
        "",
        (f"{_DIGEST}::test_a_recorded_answer_is_of_no_use",),
    ),
    Mutation(
        "A challenge takes one answer.",
        _MACHINE,
        "        self._is_open = False\n",
        "",
        (f"{_DIGEST}::test_a_wrong_answer_is_refused",),
    ),
    Mutation(
        "Nobody acts for another.",
        _MACHINE,
        '            ("authzid", user),\n',
        "",
        (f"{_DIGEST}::test_nobody_acts_for_another",),
    ),
    Mutation(
        "The client checks that the bookie knows the password.",
        _MACHINE,
        "if not self._proof or not hmac.compare_digest(proof.encode(), self._proof.encode()):",
        "if not self._proof:",
        (
            f"{_DIGEST}::test_a_client_refuses_a_bookie_that_does_not_know_the_password",
            f"{_CLIENT}::test_a_peer_that_is_no_bookie_of_ours",
        ),
    ),
    Mutation(
        "Adds need a right.",
        "bookie_server/net/native/request_context.py",
        "            answer(Code.UNAUTHORIZED)\n"
        '            self.observe_codes("add", Code.UNAUTHORIZED, count, begun)\n            return\n',
        "            pass\n",
        (f"{_RIGHTS}::test_each_request_needs_its_right",),
    ),
    Mutation(
        "Adds of recovery need the right to fence.",
        "bookie_server/net/native/request_context.py",
        "if not self.may(FENCE if recovery else WRITE):",
        "if not self.may(WRITE):",
        (f"{_RIGHTS}::test_each_request_needs_its_right",),
    ),
    Mutation(
        "Reads over v2 need a right, and fencing ones another.",
        "bookie_server/net/native/requests_v2.py",
        "context.may(READ if run.master_key is None else READ | FENCE)",
        "context.may(READ)",
        (f"{_RIGHTS}::test_each_request_needs_its_right",),
    ),
    Mutation(
        "So do batch reads.",
        "bookie_server/net/native/requests_v2.py",
        "context.may(READ if request.master_key is None else READ | FENCE)",
        "context.may(0)",
        (f"{_RIGHTS}::test_each_request_needs_its_right",),
    ),
    Mutation(
        "Fencing over v3 needs a right.",
        "bookie_server/net/native/requests_v3.py",
        'not read.HasField("masterKey") or not context.may(FENCE):',
        'not read.HasField("masterKey"):',
        (f"{_RIGHTS}::test_each_request_needs_its_right",),
    ),
    Mutation(
        "Other requests over v3 need rights.",
        "bookie_server/net/native/requests_v3.py",
        "elif not context.may(_NEEDED.get(operation, 0)):",
        "elif not context.may(0):",
        (f"{_RIGHTS}::test_each_request_needs_its_right",),
    ),
    Mutation(
        "The rights of a login count from its end on.",
        "bookie_server/net/common/access/front_access.py",
        "self.is_allowed, self.rights = True, self._rights()",
        "self.is_allowed, self.rights = True, ALL",
        (f"{_RIGHTS}::test_each_request_needs_its_right",),
    ),
    Mutation(
        "A pattern matches whole names.",
        "bookie_server/net/common/access/rights.py",
        "any(map(pattern.fullmatch, known))",
        "any(map(pattern.match, known))",
        (f"{_RIGHTS}::test_names_have_the_rights_of_all_lines_that_match",),
    ),
    Mutation(
        "A call of gRPC needs its right.",
        "bookie_server/net/grpc/server.py",
        "(access.may if counted else access.has)(needed)",
        "(access.may if counted else access.has)(0)",
        (f"{_RIGHTS}::test_each_call_of_grpc_needs_its_right",),
    ),
    Mutation(
        "So do reads of gRPC, and fencing ones another.",
        "bookie_server/net/grpc/reads.py",
        'if not self.requests.may(READ if kind == "read" else READ | FENCE):',
        "if not self.requests.may(READ):",
        (f"{_RIGHTS}::test_each_call_of_grpc_needs_its_right",),
    ),
)
