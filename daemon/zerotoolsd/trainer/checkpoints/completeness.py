"""The check that the tensors of a checkpoint are complete, as in `zerotools verify --fast`."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.errors import BadFile, ZerotoolsError
from zerotools.ops.verification.verify import prepare, verify


def check_structure(directory: Path) -> None:
    """Read the metadata of a checkpoint and no data: every tensor is covered, every chunk inside
    its file, the files of all ranks are there and of one save.

    Raises:
        BadFile: something is missing, or does not fit.
    """
    try:
        found = verify(prepare(directory), fast=True)
    except ZerotoolsError as error:
        raise BadFile(str(error)) from None
    if found.findings:
        raise BadFile(found.findings[0].message)


def why_not_whole(directory: Path) -> str | None:
    """Return a sentence if `check_structure` refuses a checkpoint that was just saved."""
    try:
        check_structure(directory)
    except Exception as error:  # an error of this check must not end the run
        return str(error) or type(error).__name__
    return None
