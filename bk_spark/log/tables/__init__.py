"""Logs as tables without Spark: scans and writes. What Spark's tasks share with them is here, too.

Scans: :mod:`ranges` finds what to read. Writes: :mod:`append_ledgers` gives ledgers to write to, :mod:`append_rows`
writes to them.
"""
