"""How a setting is declared, read, checked and printed: for the options of the data source, the client's configuration
and the bookie's. Each of them is a dataclass whose fields are settings.
"""
