"""Rows to entries and back, one module for each entry format. Tasks of batch and streaming queries come in here."""
