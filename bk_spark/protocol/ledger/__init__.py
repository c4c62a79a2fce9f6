"""The machines of a ledger's client, without I/O: writing, reading, tailing, recovery, closing.

The client runs them against bookies and ZooKeeper. The simulator runs them against models.
"""
