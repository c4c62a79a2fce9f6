"""The machines of reading: ranges of entries, single entries, the last add confirmed, and following a ledger.

The client's readers run them, and so does code that copies entries.
"""
