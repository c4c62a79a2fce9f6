"""Generated from ``data_formats.proto`` by ``make proto``. Only ``protocol.metadata`` uses it."""
