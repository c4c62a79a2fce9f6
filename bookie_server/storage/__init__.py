"""Entries on disk: journal, write cache, entry logs, index files; :mod:`ledger_storage` is all of it as one thing.

:class:`bookie_server.bookie.Bookie` and the collector come in here.
"""
