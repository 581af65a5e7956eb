"""`python -m fineshards` is `fineshards`."""

import sys

from fineshards.pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
