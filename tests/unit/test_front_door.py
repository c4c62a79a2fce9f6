"""``import bk_spark``: every public name, none of them imported before it is used."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import bk_spark

pytestmark = pytest.mark.unit

URI = "zk://127.0.0.1:1/ledgers"


def test_the_import_of_the_package_imports_nothing_else() -> None:
    script = "import sys; before = {*sys.modules}; import bk_spark; print(*sorted({*sys.modules} - before))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ours_and_others = {name for name in run.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert ours_and_others == {"bk_spark"}
    assert "asyncio" not in run.stdout.split()


@pytest.mark.parametrize("name", ["Quorum", "errors", "DigestType"])
def test_a_name_imports_only_what_it_needs(name: str) -> None:
    script = f"import sys; from bk_spark import {name}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {name for name in run.stdout.split() if name.startswith(("bk_spark.log", "bk_spark.bookie", "kazoo"))}


def test_every_name_is_there_and_is_listed() -> None:
    assert sorted(bk_spark.__all__) == bk_spark.__all__
    for name in bk_spark.__all__:
        assert getattr(bk_spark, name) is not None
        assert name in dir(bk_spark)
    assert bk_spark.errors.BookKeeperError.__module__ == "bk_spark.protocol.errors"
    with pytest.raises(AttributeError, match="module 'bk_spark' has no attribute 'Clien'"):
        _ = bk_spark.Clien  # type: ignore[attr-defined]


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(bk_spark.__file__).read_text("utf-8"))
    for_checkers, at_run_time = (node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(for_checkers.test) == "TYPE_CHECKING"
    # A checker that saw __getattr__ would accept any name.
    assert ast.unparse(at_run_time.test) == "not TYPE_CHECKING"
    assert [node.name for node in at_run_time.body if isinstance(node, ast.FunctionDef)] == ["__getattr__"]
    seen = {}
    for node in for_checkers.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module is not None
        for alias in node.names:
            module = node.module.removeprefix("bk_spark.")
            # Two of the names are modules.
            is_module = alias.asname is not None or alias.name == "errors"
            path = f"bk_spark.{module}.{alias.name}" if is_module else f"bk_spark.{module}"
            found = importlib.import_module(path.replace("bk_spark.bk_spark", "bk_spark"))
            seen[alias.asname or alias.name] = found if is_module else getattr(found, alias.name)
    for name, one in seen.items():
        assert getattr(bk_spark, name) is one
    assert {*seen, "__version__"} == {*bk_spark.__all__}


def test_wrong_arguments_are_refused_before_anything_connects(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, object], str]] = [
        ({"password": "secret", "password_file": tmp_path}, "password and password_file are both given"),
        ({"password_file": tmp_path / "none"}, r"password_file: .*none cannot be read \(No such file"),
        ({"config": {"addEntryTimeout": "1"}}, "did you mean addEntryTimeoutSec"),
        ({"log_root": "logs"}, "logs"),
    ]
    for arguments, text in wrong:
        with pytest.raises(bk_spark.errors.InvalidArgumentError, match=text) as raised:
            bk_spark.connect(URI, **arguments)  # type: ignore[arg-type]
        assert "secret" not in str(raised.value)
    with pytest.raises(bk_spark.errors.InvalidArgumentError, match="metadataServiceUri"):
        bk_spark.connect("bookies")
