"""Entries on disk: journal, write cache, entry logs and index files, combined in :mod:`ledger_storage`.

:class:`bookie_server.bookie.Bookie` and the collector import from here.
"""
