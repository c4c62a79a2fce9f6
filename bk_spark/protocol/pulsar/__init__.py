"""Apache Pulsar's formats: what a topic is in ZooKeeper and in the ledgers' entries. Source: docs/design/pulsar.md.

``topic_names``, ``managed_ledgers``, ``cursors`` and ``schemas`` are about metadata, ``message_ids`` about positions.
``decoding`` turns entries into Arrow's columns: ``entry_frames`` and ``field_columns`` take many entries apart at once,
``batches`` finds the messages in them, ``compression`` and ``chunks`` restore payloads, ``transactions`` says which
messages count, ``columns`` builds the Arrow arrays with ``gathering``. ``values`` decodes values by a topic's schema.
"""
