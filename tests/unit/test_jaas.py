"""Files of JAAS as Apache's have them, and wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bk_spark.bookie.auth.jaas import options_of
from bk_spark.bookie.auth.sasl import SaslBookie, SaslClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.errors import InvalidArgumentError

_DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"
_FILE = f"""
// For bookies.
Bookie {{
  {_DIGEST} required
  user_bookkeeper="golden"
  user_visitor="a \\"b\\" // c"
  user_plain=word
  username="bookkeeper"; /* one
  user_ghost="x" */
}};
# Another program's.
Kafka {{ org.apache.kafka.common.security.plain.PlainLoginModule optional username="k" password="l"; }};
BookKeeper{{{_DIGEST} required username="spark" password="ä";}};
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jaas.conf"
    path.write_text(_FILE)
    path.chmod(0o600)
    return path


def test_sections_and_options(path: Path) -> None:
    bookie = options_of(str(path), "Bookie", "key")
    assert bookie == {
        "user_bookkeeper": "golden",
        "user_visitor": 'a "b" // c',
        "user_plain": "word",
        "username": "bookkeeper",
    }
    assert options_of(str(path), "BookKeeper", "key") == {"username": "spark", "password": "ä"}
    for other in ("Kafka", "Auditor"):
        with pytest.raises(InvalidArgumentError, match=f"key: {path} has no section {other}"):
            options_of(str(path), other, "key")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Bookie", "line 1: { is missing"),
        ("Bookie {", "ends in the middle"),
        (f"Bookie {{\n {_DIGEST}\n user_a=hidden;\n}};", "line 3: expected a module and one of required, "),
        (f"Bookie {{\n {_DIGEST} required user_a;\n}};", "line 2: = is missing"),
        (f"Bookie {{\n {_DIGEST} required user_a=;\n}};", "a name or a value is missing"),
        (f'Bookie {{\n {_DIGEST} required user_a="hidden;\n}};', "line 2: a quote is not closed"),
        (f'Bookie {{ {_DIGEST} required user_a="hidden"; }}', "; is missing"),
        (f'Bookie {{ {_DIGEST} required user_a="hidden"; B required; }};', "must have one module"),
        (f"Bookie {{ {_DIGEST} required a=hidden; }};" * 2, "for the second time"),
    ],
)
def test_wrong_files_are_named_without_their_secrets(path: Path, text: str, says: str) -> None:
    path.write_text(text)
    with pytest.raises(InvalidArgumentError) as wrong:
        options_of(str(path), "Bookie", "java.security.auth.login.config")
    assert str(wrong.value).startswith(f"java.security.auth.login.config: {path} ")
    assert says in str(wrong.value)
    assert "hidden" not in str(wrong.value)


@pytest.mark.parametrize("data", [b"\xff", b"x" * (1024 * 1024 + 1)])
def test_other_files(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(InvalidArgumentError, match="is not a JAAS file"):
        options_of(str(path), "Bookie", "key")
    with pytest.raises(InvalidArgumentError, match="cannot be read: No such file"):
        options_of(f"{path}.none", "Bookie", "key")


def test_a_file_that_others_may_read_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options_of(str(path), "Bookie", "key")
    assert not caplog.records
    path.chmod(0o644)
    options_of(str(path), "Bookie", "key")
    assert f"others than its owner may read {path}" in caplog.text


def test_a_section_must_have_what_its_side_needs(path: Path) -> None:
    anybody = re.compile(".*")
    key = "java.security.auth.login.config"
    for jaas, section, says in (("", "Bookie", "is missing"), (str(path), "BookKeeper", "has no user_NAME")):
        with pytest.raises(InvalidArgumentError, match=says):
            SaslBookie(jaas, section, anybody)
    config = ClientConfig.from_properties({key: str(path), "saslJaasClientSectionName": "Bookie"})
    with pytest.raises(InvalidArgumentError, match="lacks username or password"):
        SaslClient(config)
    with pytest.raises(InvalidArgumentError, match=f"{key} is missing"):
        SaslClient(ClientConfig())
    assert "golden" not in repr(SaslBookie(str(path), "Bookie", anybody)) + repr(config)
