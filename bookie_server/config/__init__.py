"""The ``.conf`` file with Apache's keys: one table of keys, read and checked. The start of the process comes in
here.
"""
