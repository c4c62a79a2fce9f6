"""Commands that read the directories of a stopped bookie, with the names of Apache's shell.

The readers are in ``bookie_server/offline``, beside the formats. Modules of this folder are the only ones of
``bk_spark`` that import from the server, and only from there. They are imported when such a command runs.
"""
