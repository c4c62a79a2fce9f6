"""Knows the bookies, their racks, disk space and recent failures, and chooses bookies for ledgers.

The client's services use this folder.
"""
