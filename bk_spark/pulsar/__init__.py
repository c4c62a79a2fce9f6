"""Pulsar's topics, read straight from ZooKeeper and the bookies: I/O without Spark.

:mod:`bk_spark.protocol.pulsar` decodes znodes and entries. Here is what finds and fetches them: the stores of metadata
(:mod:`stores`), topics and their partitions (:mod:`topics`), what is readable of a topic (:mod:`topic_ledgers`, in the
form of :mod:`entry_numbers`), its messages (:mod:`messages`), the outcomes of
:mod:`transactions`, and the versions of schemas (:mod:`stored_schemas`).

Nothing here writes, fences a ledger or asks a broker.
"""
