"""TLS between clients and bookies: settings, certificates and keys from files, and the layer between a protocol and its
socket. Both sides use it: the client's connections, and the bookie's front end.
"""
