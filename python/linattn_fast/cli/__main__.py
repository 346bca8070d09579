"""``python -m linattn_fast.cli``: the same as ``linattn-fast``."""

import sys

from .program import main

if __name__ == "__main__":
    sys.exit(main())
