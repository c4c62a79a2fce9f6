"""Rules of decoders that fuzz tests must find broken, with the examples of any day."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

MUTATIONS: Final = (
    Mutation(
        "An answer that is too short is an error of the format.",
        "bk_spark/protocol/wire/answers_v2.py",
        "if length < ANSWER_BYTES:",
        "if length < 4:",
        ("tests/fuzz/test_answers.py::test_v2_answers",),
    ),
    Mutation(
        "A znode in text that is not UTF-8 is an error of the format.",
        "bk_spark/protocol/metadata/text_message.py",
        "except (UnicodeDecodeError, text_format.ParseError)",
        "except text_format.ParseError",
        (
            "tests/fuzz/test_metadata.py::test_small_znodes[lock]",
            "tests/fuzz/test_metadata.py::test_small_znodes[vote]",
        ),
    ),
    Mutation(
        "A field of a cookie that is empty is not one that is missing.",
        "bk_spark/protocol/metadata/cookie.py",
        'message.instanceId if message.HasField("instanceId") else None',
        "message.instanceId or None",
        ("tests/fuzz/test_metadata.py::test_cookies_are_read_as_they_were_written",),
    ),
    Mutation(
        "A schema that nests deeper than a parser can follow is refused.",
        "bk_spark/log/formats/settings.py",
        "except (ValueError, RecursionError)",
        "except ValueError",
        ("tests/fuzz/test_logs.py::test_schemas_in_settings",),
    ),
    Mutation(
        "A znode of a log that is no message is an error of the format.",
        "bk_spark/log/formats/znodes.py",
        "    except DecodeError as error:",
        "    except KeyError as error:",
        (
            "tests/fuzz/test_logs.py::test_znodes_of_logs[maintenance]",
            "tests/fuzz/test_logs.py::test_znodes_of_logs[settings]",
        ),
    ),
)
