"""The long runs of a night: what ``make test`` tries with few seeds, with others every night until their time is used.

``plan`` says which runs there are and how they are called, ``lane`` calls them one after the other, and ``__main__``
writes the report.
"""
