"""What BookKeeper keeps in ZooKeeper: ledger metadata, cookies, registrations, paths; and znodes and transactions
as types.

Whoever reads or writes ZooKeeper comes in here.
"""
