"""``python -m bookie_server``: the same as the ``bookie-server`` command."""

import sys

from bookie_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
