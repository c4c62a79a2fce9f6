"""The bookie: a server for ledgers that Apache BookKeeper's clients and tools can use.

:mod:`process` starts it, :mod:`service` puts its parts together, :mod:`bookie` is what a client may ask of it.
"""
