"""The auditor: its election, when it checks what, its scans of all ledgers, and the performer of their actions.

The daemon runs them. The performer runs ``auditor_store`` in threads and is paced by ``list_turns``; all others are
pure.
"""
