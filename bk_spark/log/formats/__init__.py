"""What a log keeps in ZooKeeper and in index ledgers, byte by byte, and the names of its znodes. Pure; every part
of ``log`` comes in here.
"""
