"""BookKeeper's protocol without I/O, clock, threads or coroutines. Client, server, logs and simulators all use it.

This folder has errors, codes and quorum arithmetic. ``entries`` has stored entries, ``wire`` has frames, ``ledger`` has
the machines, ``metadata`` has the formats in ZooKeeper, ``auth`` has logins, and ``pulsar`` has the formats of Pulsar's
topics.
"""
