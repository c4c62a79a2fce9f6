"""``python -m bk_spark.bkctl``."""

import sys

from bk_spark.bkctl.command_line.command import main

sys.exit(main())
