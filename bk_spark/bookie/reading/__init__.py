"""Runs the machines of reading and tailing a ledger against bookies.

The client opens the handles in this folder.
"""
