"""Stored entries: header, digest, payload, one by one and in blocks.

Everything that touches entry bytes comes in here, bookies as well as clients.
"""
