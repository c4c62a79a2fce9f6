"""Index files: which entry is where; their pages in memory. Storage and the collector come in here."""
