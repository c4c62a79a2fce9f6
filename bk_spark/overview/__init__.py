"""The whole cluster at a glance, as JSON: bookies, ledgers, repairs, logs and who writes and reads them.

The page that bookies serve and ``bkctl top`` show it. It is made of ZooKeeper's znodes and of what bookies say over
HTTP, and changes nothing. Each part is bounded, however large the cluster is, and says what it left out.
"""
