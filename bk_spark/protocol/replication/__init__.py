"""Machines that check and repair one ledger: which copies are bad, what to copy, when to fence. Pure.

Replication workers and ``bkctl recover`` run them. Their rules, and why these lose nothing, are in
docs/design/replication.md.
"""
