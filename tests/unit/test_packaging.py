"""What is published: pyproject.toml against what the packages import, and the README as a package index shows it."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.nightly.plan import PYTHONS
from tests.support.environments import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
OURS = {"bk_spark", "bookie_server", "pyspark_bookkeeper"}
SPARK_SIDE = ("bk_spark/datasource/", "pyspark_bookkeeper.py")


def imports() -> Iterator[tuple[str, str]]:
    """(file, top-level name) of everything that our packages import from others, wherever in the file."""
    included = [path for name in OURS for path in (REPOSITORY / name).rglob("*.py")]
    for path in (*included, REPOSITORY / "pyspark_bookkeeper.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                if top not in OURS and top not in sys.stdlib_module_names:
                    yield str(path.relative_to(REPOSITORY)), top


def names_of(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def distributions_of(tops: set[str]) -> set[str]:
    owners = importlib.metadata.packages_distributions()
    # Others put modules beside protobuf's into the package "google".
    return {"protobuf" if top == "google" else canonicalize_name(owners[top][0]) for top in tops}


def test_every_dependency_is_imported_and_every_import_is_a_dependency() -> None:
    found = set(imports())
    spark = {top for path, top in found if path.startswith(SPARK_SIDE)}
    rest = {top for path, top in found if not path.startswith(SPARK_SIDE)}
    base, extra = names_of(PROJECT["dependencies"]), names_of(PROJECT["optional-dependencies"]["spark"])
    grpc, frames, pulsar = (names_of(PROJECT["optional-dependencies"][one]) for one in ("grpc", "frames", "pulsar"))
    assert distributions_of(rest) == base | grpc | frames | pulsar
    assert not base & (grpc | frames | pulsar)
    assert distributions_of(spark) - base == extra == {"pyspark"}


def test_the_metadata_name_licence_authors_and_addresses() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["authors"]
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(PROJECT["urls"])
    for name in PROJECT["license-files"]:
        text = (REPOSITORY / name).read_text("utf-8")
        assert "Apache License" in text
        assert "Version 2.0, January 2004" in text


def test_the_classifiers_name_each_python_that_is_tested() -> None:
    prefix = "Programming Language :: Python :: "
    named = [one.removeprefix(prefix) for one in PROJECT["classifiers"] if one.startswith(prefix)]
    assert tuple(name for name in named if "." in name) == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_links_of_the_readme_are_absolute_and_lead_to_files_that_exist() -> None:
    """A package index shows the README alone: a relative link would lead nowhere."""
    repository = PROJECT["urls"]["Repository"]
    readme = (REPOSITORY / PROJECT["readme"]).read_text("utf-8")
    links = [*re.findall(r"\]\(([^)]+)\)", readme), *PROJECT["urls"].values()]
    assert len(links) > 20
    for link in links:
        assert link.startswith("https://"), link
        if link.startswith(repository):
            found = re.fullmatch(r"|/issues|/(blob|raw|tree)/main/([^#]+)(#.*)?", link.removeprefix(repository))
            assert found is not None, link
            if found[2]:
                path = REPOSITORY / found[2]
                assert path.is_dir() if found[1] == "tree" else path.is_file(), link
