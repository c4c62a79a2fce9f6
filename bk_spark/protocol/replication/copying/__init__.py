"""The copy of a fragment to other bookies: the machine, its limits, and how fast a process copies beside other clients.

The repair of a ledger runs the machine; daemons and ``bkctl recover`` set limits and pace.
"""
