"""Rows to entries and back, one module per entry format, and the schema of a log. Nothing here knows Spark or does I/O.

A log's schema is kept as text in Spark's JSON form. :mod:`columns` has its types, :mod:`schema_text` reads and writes
the text, :mod:`arrow_types` gives the Arrow form of each type, and :mod:`schema_checks` compares schemas.
:mod:`row_places` says in error texts which row of a task is meant.
"""
