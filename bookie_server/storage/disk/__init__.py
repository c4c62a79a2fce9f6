"""Directories and files on disk, whatever they hold: changes of files, direct writes, open files, and full directories.

Everything in the bookie that changes files comes in here, so that crash runs can record it.
"""
