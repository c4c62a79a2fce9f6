"""Disk usage and limits of the machine: space, file sizes, open files. Service and net import from here."""
