"""Journals: file layout, group commit, reading, replay and marks. Only storage imports from here."""
