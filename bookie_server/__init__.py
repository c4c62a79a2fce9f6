"""The bookie: a server for ledgers that works with Apache BookKeeper's clients and tools.

:mod:`process` starts it, :mod:`service` assembles its parts, :mod:`bookie` implements the client operations.
"""
