"""Logins of clients at bookies: settings, files with passwords, and the ways to log in that come with the package. Both
sides use it: the client's connections, and the bookie's front ends.
"""
