"""``python -m attack --minutes 60``."""

import sys

from .campaign import main

sys.exit(main())
