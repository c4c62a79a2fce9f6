"""ZooKeeper: one session, and over it ledger metadata, ledger ids and the cluster's clock.

The client, logs and the bookie server come in here.
"""
