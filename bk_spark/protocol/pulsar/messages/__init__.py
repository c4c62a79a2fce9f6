"""The messages of many entries at once, as Arrow's columns, without an object for each. ``decoding`` uses this folder.

``entry_frames`` finds the parts of entries, ``batches`` the messages of batches. Both read metadata with
``field_columns``, from ``words``; it reads at once what ``layouts`` finds alike. ``rows`` makes the columns of
``entries``, which need the fields in ``needed_fields``, with the arrays of ``gathering``, ``message_id_columns`` and
``encryption_columns``.
"""
