"""Apache Pulsar's formats: what a topic is in ZooKeeper and in the ledgers' entries. Source: docs/design/pulsar.md.

``topics/`` is about names and metadata, ``message_ids`` about positions. ``decoding`` turns entries into the columns of
``columns``: ``messages/`` takes many entries apart at once, ``compression`` and ``chunks`` restore payloads,
``transactions`` says which messages count. ``values`` decodes values by a topic's schema. ``choices`` has what a reader
may choose.
"""
