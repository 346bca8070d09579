"""``python -m linattn_fast.cli`` is the program ``linattn-fast``."""

import sys

from .program import main

if __name__ == "__main__":
    sys.exit(main())
