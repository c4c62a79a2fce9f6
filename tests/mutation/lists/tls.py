"""Rules of TLS on both sides."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

_SERVER: Final = "tests/unit/test_net_tls.py"
_CLIENT: Final = "tests/unit/test_client_tls.py"
_BESIDE: Final = "tests/unit/test_net_handshakes.py"
_LOGINS: Final = "tests/unit/test_net_early_logins.py"
_CONTEXTS: Final = "tests/unit/test_tls_contexts.py"

MUTATIONS: Final = (
    Mutation(
        "Only START_TLS is taken from the socket before the handshake.",
        "bookie_server/net/common/entrance/front_tls.py",
        "self._socket.recv(len(self._login) + len(self._first))",
        "self._socket.recv(1 << 16)",
        (f"{_SERVER}::test_nothing_that_came_in_clear_behind_start_tls_is_obeyed",),
    ),
    Mutation(
        "Requests in clear are refused where TLS is required.",
        "bookie_server/net/common/entrance/front_tls.py",
        "if not self._front.required:",
        "if True:",
        (f"{_SERVER}::test_requests_in_clear_are_refused_where_tls_is_required",),
    ),
    Mutation(
        "START_TLS may come behind the beginning of a login.",
        "bookie_server/net/common/entrance/front_tls.py",
        "rest = beginning[len(self._login) :]",
        "rest = beginning",
        (f"{_LOGINS}::test_a_login_may_begin_in_clear_before_start_tls",),
    ),
    Mutation(
        "It may come a little later.",
        "bookie_server/net/common/entrance/front_tls.py",
        "self.may_ask_for_tls = bool(self._login) and",
        "self.may_ask_for_tls = False and",
        (f"{_LOGINS}::test_a_login_may_begin_in_clear_before_start_tls",),
    ),
    Mutation(
        "Nothing but the beginning of a login may come before START_TLS.",
        "bookie_server/net/common/entrance/front_tls.py",
        "first if first and begins_login(first[LENGTH_BYTES:]) else",
        "first if first else",
        (f"{_LOGINS}::test_nothing_else_may_come_in_clear_before_start_tls",),
    ),
    Mutation(
        "Who hangs up before all that is wanted has come is closed at once.",
        "bookie_server/net/common/entrance/newcomers.py",
        "True, bool(events & _HUNG_UP)",
        "True, False",
        ("tests/unit/test_net_tls.py::test_a_peer_that_hangs_up_in_the_middle_of_start_tls_is_forgotten",),
    ),
    Mutation(
        "Who logs in in clear is heard, though not all came that was waited for.",
        "bookie_server/net/common/entrance/newcomers.py",
        "self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)",
        "pass",
        (f"{_LOGINS}::test_logins_in_clear_where_tls_is_possible",),
    ),
    Mutation(
        "An unfinished handshake ends when its connection is given up.",
        "bookie_server/net/native/connection.py",
        "            self.joining.cancel()\n",
        "            pass\n",
        (f"{_SERVER}::test_an_unfinished_handshake_gives_way_to_a_newcomer",),
    ),
    Mutation(
        "A handshake begins when its first record is whole.",
        "bk_spark/protocol/wire/start_tls.py",
        "return min(_RECORD_HEAD_BYTES + content_bytes, _MOST_HELLO_BYTES)",
        "return _RECORD_HEAD_BYTES",
        (f"{_BESIDE}::test_n1_who_stalls_before_the_first_record_is_whole_costs_no_transport_and_no_step",),
    ),
    Mutation(
        "Who does not send the first record is closed.",
        "bookie_server/net/common/entrance/awaited.py",
        "due_s[newcomer] <= now_s",
        "False",
        (f"{_BESIDE}::test_who_does_not_send_the_first_record_is_closed_after_some_time",),
    ),
    Mutation(
        "What needs the private key is not computed in the event loop.",
        "bookie_server/net/common/entrance/front_tls.py",
        "            steps=self._steps,\n",
        "            steps=None,\n",
        (f"{_BESIDE}::test_a_thread_computes_what_needs_the_private_key_one_at_a_time",),
    ),
    Mutation(
        "Nothing is computed for a peer that has hung up.",
        "bookie_server/net/common/entrance/handshakes.py",
        "if _has_hung_up(handshake):",
        "if False:",
        (f"{_BESIDE}::test_nothing_is_computed_for_who_has_hung_up",),
    ),
    Mutation(
        "Connections that end do not wait for a step any more.",
        "bk_spark/bookie/tls/transport.py",
        "            self._steps.leave(self)\n",
        "            pass\n",
        (f"{_BESIDE}::test_who_gives_up_or_gives_way_leaves_the_line",),
    ),
    Mutation(
        "Who fails a handshake is told after a while.",
        "bk_spark/bookie/tls/transport.py",
        "self._loop.call_later(self._steps.failed(self), self._send_alert)",
        "self._send_alert()",
        (f"{_BESIDE}::test_n1_who_fails_a_handshake_is_told_after_a_while",),
    ),
    Mutation(
        "Whose certificate is refused, too: after the costly step.",
        "bk_spark/bookie/tls/transport.py",
        "            self._is_costly = False  # the rest is cheap\n",
        "            self._steps = None\n",
        (f"{_BESIDE}::test_n1_who_fails_a_handshake_is_told_after_a_while",),
    ),
    Mutation(
        "Handshakes of who failed none lately go first.",
        "bookie_server/net/common/entrance/handshakes.py",
        "(self._suspects if is_suspect else self._line).add(handshake)",
        "self._line.add(handshake)",
        (f"{_BESIDE}::test_n1_who_failed_no_handshake_lately_goes_first",),
    ),
    Mutation(
        "Who leaves during a handshake has failed it.",
        "bk_spark/bookie/tls/transport.py",
        "                self._steps.failed(self)\n",
        "                pass\n",
        (f"{_BESIDE}::test_who_leaves_during_a_handshake_has_failed_it",),
    ),
    Mutation(
        "Who speaks something else is closed after a while.",
        "bookie_server/net/native/connection.py",
        "        if self._has_spoken:\n            self.abort()",
        "        if True:\n            self.abort()",
        (f"{_BESIDE}::test_tls_without_start_tls_is_named_once_in_a_while",),
    ),
    Mutation(
        "Mutual TLS requires a certificate.",
        "bk_spark/bookie/tls/contexts.py",
        "ssl.CERT_REQUIRED if settings.tls_client_authentication else ssl.CERT_NONE",
        "ssl.CERT_OPTIONAL if settings.tls_client_authentication else ssl.CERT_NONE",
        (f"{_SERVER}::test_mutual_tls_refuses_other_certificates_and_tells_the_client_why",),
    ),
    Mutation(
        "Changed certificates are used without a restart.",
        "bk_spark/bookie/tls/contexts.py",
        "if marks == self._seen:",
        "if marks:",
        (f"{_SERVER}::test_changed_certificates_are_used_for_new_connections",),
    ),
    Mutation(
        "Hosts are verified.",
        "bk_spark/bookie/tls/contexts.py",
        "context.check_hostname = settings.tls_hostname_verification",
        "context.check_hostname = False",
        (f"{_CLIENT}::test_a_bookie_with_a_wrong_certificate_is_refused",),
    ),
    Mutation(
        "The peer learns why a handshake failed.",
        "bk_spark/bookie/tls/transport.py",
        "        self._flush()\n        if not self._raw.is_closing():\n            self._raw.resume_reading()",
        "        if not self._raw.is_closing():\n            self._raw.resume_reading()",
        (f"{_SERVER}::test_mutual_tls_refuses_other_certificates_and_tells_the_client_why",),
    ),
    Mutation(
        "A connection whose answers are not read is not read either, with TLS too.",
        "bk_spark/bookie/tls/transport.py",
        "        return self._raw.get_write_buffer_size()",
        "        return 0",
        (f"{_SERVER}::test_answers_that_a_peer_does_not_read_are_counted",),
    ),
    Mutation(
        "Bytes in clear behind the bookie's answer end the connection.",
        "bk_spark/bookie/connection/client_tls.py",
        "if len(self._received) > size:",
        "if len(self._received) > size + 1000:",
        (f"{_CLIENT}::test_wrong_answers_to_start_tls_end_the_connection",),
    ),
    Mutation(
        "A client with TLS does not go on without it.",
        "bk_spark/bookie/connection/pool.py",
        "            await tls.connect(host, port, connection)\n",
        "            try:\n                await tls.connect(host, port, connection)\n"
        "            except TlsError:\n"
        "                await asyncio.get_running_loop().create_connection(lambda: connection, host, port)\n",
        (f"{_CLIENT}::test_a_bookie_without_tls_is_not_asked_in_clear",),
    ),
    Mutation(
        "A line end behind a password is no part of it.",
        "bk_spark/bookie/tls/stores.py",
        'return text.removesuffix(b"\\n").removesuffix(b"\\r")',
        "return text",
        (f"{_CONTEXTS}::test_every_form_of_key_and_trust_store_works_with_every_other",),
    ),
    Mutation(
        "Every cipher suite of the list is used.",
        "bk_spark/bookie/tls/suites.py",
        'context.set_ciphers(":".join(older))',
        "context.set_ciphers(older[0])",
        (f"{_CONTEXTS}::test_every_protocol_and_suite_of_the_lists_is_used",),
    ),
)
