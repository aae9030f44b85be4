"""`zerotoolsd`, and `python -m zerotoolsd`."""

import sys
from collections.abc import Sequence

from zerotools.cli.output.messages import say_error
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.daemon_package import INSTALL_DAEMON, NEEDED
from zerotoolsd.command.options import make_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon until SIGTERM or SIGINT. Returns the exit status."""
    make_parser().parse_args(arguments)  # help, version and units need no package
    try:
        from zerotoolsd.app import main as run
    except ModuleNotFoundError as error:
        if error.name != NEEDED:
            raise
        say_error(f"zerotoolsd needs {NEEDED}, which is not installed; {INSTALL_DAEMON}")
        return BadRequest.exit_code  # as for bad configuration: the unit is not started again
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
