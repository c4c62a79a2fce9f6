"""Counters and summaries under Apache's names, and their text format. The service connects them to the parts."""
