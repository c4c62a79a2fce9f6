"""BookKeeper's data in ZooKeeper: ledger metadata, cookies, registrations and paths, and types for znodes and
transactions.

All code that reads or writes ZooKeeper uses this folder.
"""
