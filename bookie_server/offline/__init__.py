"""Reading the directories of a stopped bookie, ours or Apache's: journals, marks, entry logs and index files.

Nothing here changes a file, prints, or starts a part of the bookie. The offline commands of ``bkctl``
(``bk_spark/bkctl/offline``) are the only user. They may import nothing else of the server.
"""
