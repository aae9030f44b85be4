"""`python -m zerotools`: the same as the `zerotools` command."""

from zerotools.cli.main import main

main()
