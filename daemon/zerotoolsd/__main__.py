"""`zerotoolsd`, and `python -m zerotoolsd`."""

import os
import sys
from collections.abc import Sequence

from zerotools.cli.output.messages import say_error
from zerotools.core.errors import EXIT_BROKEN_PIPE, EXIT_SYSTEM, BadRequest
from zerotools.jobs.client.daemon_package import INSTALL_DAEMON, NEEDED
from zerotoolsd.command.options import make_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon until SIGTERM or SIGINT. Returns the exit status."""
    try:
        _answer(arguments)
    except OSError as error:
        _leave_stdout()
        if isinstance(error, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        say_error(f"{error.filename or 'standard output'}: {error.strerror or error}")
        return EXIT_SYSTEM
    try:
        from zerotoolsd.app import main as run
    except ModuleNotFoundError as error:
        if error.name != NEEDED:
            raise
        say_error(f"zerotoolsd needs {NEEDED}, which is not installed; {INSTALL_DAEMON}")
        return BadRequest.exit_code  # as for bad configuration: the unit is not started again
    return run(arguments)


def _answer(arguments: Sequence[str] | None) -> None:
    """Check the options; print what they ask for and end, which needs no package."""
    try:
        make_parser().parse_args(arguments)
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


def _leave_stdout() -> None:
    """Drop what cannot be written: at its end, the interpreter would try again and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
