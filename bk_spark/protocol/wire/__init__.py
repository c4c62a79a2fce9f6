"""Frames of the wire protocols v2 and v3, and their codes. Only this folder knows their byte layout.

The client's connections and the bookie's front end use it.
"""
