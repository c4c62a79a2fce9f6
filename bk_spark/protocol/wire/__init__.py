"""Frames of the wire protocols v2 and v3, and the codes in them: the one place that knows their byte layout.

Connections of the client and the front end of the bookie come in here.
"""
