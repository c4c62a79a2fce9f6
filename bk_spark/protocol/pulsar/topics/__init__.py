"""A topic's names and metadata: its ledgers, schema and subscriptions in ZooKeeper, and its compacted ledger.

Only formats are here. The reader of topics and the data source come in.
"""
