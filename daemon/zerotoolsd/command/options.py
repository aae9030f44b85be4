"""The command line of `zerotoolsd`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerotools.version import version
from zerotoolsd.command.units import UNITS, this_program, unit_text


class PrintUnit(argparse.Action):
    """Print a unit and end, as `--version` does."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """`values` is the name."""
        print(unit_text(str(values), this_program()), end="")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog="zerotoolsd",
        description="Runs training jobs from a durable queue on the GPUs of this machine.",
    )
    parser.add_argument("--state-dir", type=Path, help="queue, logs and default output of the jobs")
    parser.add_argument("--socket", type=Path, help="where clients connect")
    parser.add_argument("--config", type=Path, help="a zerotoolsd.toml")
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="take what the queue lacks from the run directories: it is damaged, lost or too old",
    )
    parser.add_argument(
        "--print-unit",
        action=PrintUnit,
        nargs="?",
        const="user" if os.geteuid() else "system",
        choices=UNITS,
        metavar="NAME",
        help="print a file for systemd, with the path of this program, and end; NAME: "
        + ", ".join(UNITS),
    )
    parser.add_argument("--debug", action="store_true", help="tracebacks and debug messages")
    parser.add_argument("--version", action="version", version=f"zerotoolsd {version()}")
    return parser


def answer(arguments: Sequence[str] | None) -> None:
    """Check the options; print what they ask for, and end.

    Raises:
        OSError: it cannot be printed.
    """
    try:
        make_parser().parse_args(arguments)
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


def leave_stdout() -> None:
    """Drop what cannot be written: at its end, the interpreter would try again and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
