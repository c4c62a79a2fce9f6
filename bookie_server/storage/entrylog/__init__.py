"""Entry logs: layout, writing by flushes, reading, scanning. Storage and the collector import from here."""
