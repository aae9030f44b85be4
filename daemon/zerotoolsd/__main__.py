"""`python -m zerotoolsd`."""

import sys

from zerotoolsd.app import main

if __name__ == "__main__":
    sys.exit(main())
