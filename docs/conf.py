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

autodoc_default_options = {"members": True, "member-order": "bysource", "exclude-members": "__init__"}
autodoc_typehints = "none"
# A class has its list of methods in the contents; the table above them would be a second one.
numpydoc_show_class_members = False
# Where a page may not say what it means.
nitpicky = False
