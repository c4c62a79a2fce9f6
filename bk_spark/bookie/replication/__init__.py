"""Repair of under-replicated ledgers: the store of marks and locks in ZooKeeper, and what reads and writes the copies.

The bookie server's auditor and workers and ``bkctl`` use this folder.
"""
