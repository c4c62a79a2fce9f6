"""BookKeeper's protocol, pure: no I/O, no clock, no threads, no coroutines. Client, server, logs and simulators all
come in here.

Errors, codes and quorum arithmetic are here; ``entries`` has stored entries, ``wire`` frames, ``ledger`` the machines,
``metadata`` what is in ZooKeeper.
"""
