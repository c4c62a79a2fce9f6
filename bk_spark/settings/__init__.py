"""Declares, parses, checks and prints settings: the options of the data source, and the configurations of the client
and the bookie. Each of these is a dataclass whose fields are settings.
"""
