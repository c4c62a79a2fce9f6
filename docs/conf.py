"""Settings of Sphinx, which builds the site from these pages and from docstrings: ``make docs``."""

from __future__ import annotations

import bk_spark

project = "bk_spark"
author = copyright = "The bk_spark developers"
release = version = bk_spark.__version__

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
# index.rst includes it.
exclude_patterns = ["README.md"]
html_theme = "furo"
html_title = "bk_spark"
html_show_sphinx = False

# Anchors of headings as GitHub makes them, so that links work in both places.
myst_heading_anchors = 4

# tests/unit/test_api_reference.py finds members without a docstring; fields of dataclasses are described as parameters.
autodoc_default_options = {"members": True, "member-order": "bysource"}
# Types are in the signatures, so sections of parameters have none.
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
add_module_names = False
# A class has its methods in the contents. A table above them would be a second one.
numpydoc_show_class_members = False
# These gaps in docstrings are errors. Codes: https://numpydoc.readthedocs.io/en/latest/validation.html
numpydoc_validation_checks = {
    *("GL06", "GL07", "GL08"),  # a section that numpydoc does not know or in the wrong place; no docstring
    *("SS01", "SS03"),  # no summary, or one that is no sentence
    *("PR01", "PR02", "PR03", "PR07"),  # parameters that are not those of the signature, or are not described
    *("RT01", "RT03", "YD01"),  # what is returned or yielded is not described
}
numpydoc_validation_exclude = {
    r"\.__init__$",  # the class describes the parameters
    r"\.ClientConfig$",  # client-config.md describes the fields
    r"\.errors\.(?!BookKeeperError$)\w+$",  # all errors have the parameters of BookKeeperError
    r"\.(DigestType|LedgerState|EntryFormat|CommitStatus)$",  # enums
    # Programs do not construct these.
    r"\.(Blocking(Adv)?Writer|BlockingReader|(Adv)?WriteHandle|ReadHandle|Log|LogWriter|LogReader|LogSnapshot|Scan|AsyncLog|AsyncLogWriter|AsyncScan)$",
}
