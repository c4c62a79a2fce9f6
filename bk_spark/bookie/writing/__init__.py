"""Runs the machines of writing, closing and recovering a ledger against bookies and ZooKeeper.

The client opens the handles in this folder.
"""
