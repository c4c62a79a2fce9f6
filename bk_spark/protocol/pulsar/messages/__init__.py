"""The messages of many entries at once, as Arrow's columns, without an object for each. ``decoding`` uses this folder.

``entry_frames`` finds the parts of entries, ``batches`` the messages of batches. Both read metadata with
``field_columns``, which reads at once what ``layouts`` finds alike. ``rows`` makes the columns, with the arrays of
``gathering``, ``message_id_columns`` and ``encryption_columns``.
"""
