"""Rows to entries and back, one module per entry format. Used by tasks of batch and streaming queries."""
