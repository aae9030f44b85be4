"""Errors of commands, as a sentence for people, as JSON for programs, and as an exit status."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click

from zerotools.cli.output import render
from zerotools.cli.output.messages import print_error, split
from zerotools.core.errors import (
    EXIT_INTERRUPTED,
    EXIT_SYSTEM,
    BadFile,
    BadRequest,
    ZerotoolsError,
)

EXIT_DEFECT = 70
_NUMBER = re.compile(r"\ba valid (integer|float)(?: range)?\b")


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the command line reports it.

    `code` is a stable identifier. `status` is the HTTP status if the daemon refused the request.
    """

    message: str
    exit_code: int
    code: str
    status: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the error as JSON. It has the fields of an error of the HTTP API, the exit status,
        and the advice.
        """
        detail, hint = split(self.message)
        return {
            "title": self._title(),
            "status": self.status,
            "detail": detail,
            "code": self.code,
            "exit_code": self.exit_code,
            "hint": hint or None,
        }

    def _title(self) -> str:
        if self.status is not None:
            from http import HTTPStatus  # 2 ms that only a refusal of the daemon takes

            with suppress(ValueError):  # a newer daemon may send other statuses
                return HTTPStatus(self.status).phrase
        return self.code.replace("_", " ").title()


INTERRUPTED = Failure("interrupted", EXIT_INTERRUPTED, "interrupted")


def report(failure: Failure) -> None:
    """Print the error on stderr, and add it to the `errors` of the JSON answer."""
    if failure is not INTERRUPTED:
        print_error(failure.message)
    answer = render.current()
    if answer is not None:
        answer.errors.append(failure.to_json())


def report_error(error: ZerotoolsError) -> None:
    """Report an error and return, because the command continues."""
    report(failure_of(error))


def failure_of(error: Exception) -> Failure:
    """Return the message, exit status and code for `error`."""
    match error:
        case ZerotoolsError():
            return Failure(str(error), error.exit_code, error.code, error.status)
        case click.UsageError():
            where = error.ctx.command_path if error.ctx else "zerotools"
            message = f"{_sentence(error.format_message())}{_manual(error, where)}"
            return Failure(message, error.exit_code, BadRequest.code)
        case click.ClickException():
            return Failure(error.format_message(), error.exit_code, ZerotoolsError.code)
        case click.Abort():
            return INTERRUPTED
        case PermissionError() if _is_unreadable(error.filename):
            message = f"{error.filename} cannot be read: {error.strerror}"
            return Failure(message, BadFile.exit_code, BadFile.code)
        case FileNotFoundError() if error.filename is None and not _has_directory():
            message = "the current directory does not exist any more; change to another directory"
            return Failure(message, EXIT_SYSTEM, "system")
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return Failure(f"{place}{error.strerror or error}", EXIT_SYSTEM, "system")
        case MemoryError():
            return Failure("out of memory", EXIT_SYSTEM, "out_of_memory")
    name = type(error).__name__
    detail = f": {error}" if str(error) else ""
    message = (
        f"this is a defect in zerotools, please report it ({name}{detail}); "
        "run the same command with --debug to see where"
    )
    return Failure(message, EXIT_DEFECT, "internal")


def _is_unreadable(name: object) -> bool:
    # Path.is_file() would raise an error below a directory that this user may not enter.
    return isinstance(name, str) and os.path.isfile(name) and not os.access(name, os.R_OK)  # noqa: PTH113


def _has_directory() -> bool:
    """Return whether the current directory of this process exists."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return False
    return True


def _manual(error: click.UsageError, where: str) -> str:
    """Return a reference to the help page of the command. Return an empty string if the message
    itself suggests a correction.
    """
    return "" if "did you mean" in error.format_message() else f"; see {where} --help"


def _sentence(text: str) -> str:
    """Return a message of click in the style of zerotools: on one line, without a capital letter
    and a full stop.
    """
    text = " ".join(text.split()).removesuffix(".")  # click lists choices on lines with tabs
    text = text.replace("'. Choose from: ", "'; choose from ")
    text = _NUMBER.sub(lambda kind: "a whole number" if kind[1] == "integer" else "a number", text)
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
