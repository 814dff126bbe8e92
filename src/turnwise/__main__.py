"""`python -m turnwise`, where the command is not on the path."""

import sys

from turnwise.cli import main

if __name__ == "__main__":
    sys.exit(main())
