"""The command line of `zerotoolsd`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerotools.version import version
from zerotoolsd.app.systemd import UNITS, this_program, unit_text


class PrintUnit(argparse.Action):
    """The option that prints a systemd unit and then exits, like `--version`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        print(unit_text(str(values), this_program()), end="")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line of `zerotoolsd`."""
    parser = argparse.ArgumentParser(
        prog="zerotoolsd",
        description="Runs training jobs from a durable queue on the GPUs of this machine.",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        help="directory for the queue, the logs and, by default, the outputs of jobs",
    )
    parser.add_argument("--socket", type=Path, help="path of the socket for clients")
    parser.add_argument("--config", type=Path, help="path of a zerotoolsd.toml")
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="restore jobs from run directories, if the queue is damaged, lost or too old",
    )
    parser.add_argument(
        "--print-unit",
        action=PrintUnit,
        nargs="?",
        const="user" if os.geteuid() else "system",
        choices=UNITS,
        metavar="NAME",
        help="print a file for systemd that starts this program, and exit; NAME: "
        + ", ".join(UNITS),
    )
    parser.add_argument("--debug", action="store_true", help="log tracebacks and debug messages")
    parser.add_argument("--version", action="version", version=f"zerotoolsd {version()}")
    return parser


def parse_options(arguments: Sequence[str] | None) -> None:
    """Parse the options. An option such as `--version` prints its text and exits.

    Raises:
        OSError: the text cannot be printed.
    """
    try:
        make_parser().parse_args(arguments)
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


def discard_stdout() -> None:
    """Discard buffered output that cannot be written.

    Without this the interpreter would try to write it again at exit, and print an error.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
