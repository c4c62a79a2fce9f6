"""The auditor: its election, when it checks what, its scans of all ledgers, and the performer of their actions.

The daemon runs them. The performer and ``list_turns``, which paces it, use the event loop; all others are pure.
"""
