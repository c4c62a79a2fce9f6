"""Stored entries: header, digest and payload, one by one and in blocks.

Clients and bookies both use this folder for all access to entry bytes.
"""
