"""How full the disks are and what the machine allows: space, file sizes, open files. Service and net come in here."""
