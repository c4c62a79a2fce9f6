"""Counters and summaries under Apache's names, and their text form. The service wires them; the parts count."""
