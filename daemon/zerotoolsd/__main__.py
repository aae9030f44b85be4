"""`zerotoolsd`, and `python -m zerotoolsd`."""

import sys
from collections.abc import Sequence

from zerotools.cli.output.messages import print_error
from zerotools.core.errors import EXIT_BROKEN_PIPE, EXIT_SYSTEM, BadRequest
from zerotools.jobs.client.daemon_compatibility import NEEDED, missing_package
from zerotoolsd.app.command_line import discard_stdout, parse_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon until SIGTERM or SIGINT. Returns the exit status."""
    try:
        parse_options(arguments)
    except OSError as error:
        discard_stdout()
        if isinstance(error, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        print_error(f"{error.filename or 'standard output'}: {error.strerror or error}")
        return EXIT_SYSTEM
    try:
        from zerotoolsd.app.run_daemon import main as run
    except ModuleNotFoundError as error:
        if error.name != NEEDED:
            raise
        print_error(str(missing_package()))
        return BadRequest.exit_code  # as for bad configuration: the unit is not started again
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
