"""Index files, which map entries to locations, and their cached pages. Storage and the collector import from here."""
