"""Fuzzing of everything that decodes bytes of others: frames, znodes, files, entries, settings.

What must hold for each decoder: a value, or the error that its docstring names, with a text that says what is wrong. No
other exception, no hang, and no more memory than its limit, whatever length the bytes claim. Of a value that was
encoded, decoding gives that value.

``fuzzing`` has the decorator, which draws other examples every day and prints the line that repeats a failed one.
``damage`` makes valid bytes invalid, since random ones die at the first check. ``guard`` bounds memory and time of a
call. ``python -m tests.fuzz`` tries many more examples than ``make test``.
"""
