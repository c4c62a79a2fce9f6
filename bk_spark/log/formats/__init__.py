"""What a log stores in ZooKeeper and in index ledgers, byte by byte, and its znode names. Pure. Every part of ``log``
may import this.
"""
