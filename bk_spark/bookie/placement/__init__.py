"""Which bookies there are, in which rack, how full, which failed lately; and which of them a ledger gets.

The client's services come in here.
"""
