"""What a client of one ledger decides, as machines without I/O: writing, reading, tailing, recovery, closing.

The client runs them against bookies and ZooKeeper, the simulator against models.
"""
