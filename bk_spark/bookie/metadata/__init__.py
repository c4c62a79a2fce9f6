"""A ZooKeeper session, and the ledger metadata, ledger ids and cluster clock that use it.

The client, logs and the bookie server use this folder.
"""
