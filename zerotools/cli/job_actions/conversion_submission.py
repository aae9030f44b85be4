"""The job of a conversion (`submit --convert`), after a dry run of the conversion on this host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from zerotools.cli.output.messages import print_message
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.submission_conflicts import Submission
from zerotools.jobs.jobfile.make_conversion_job import (
    IN_PARTS,
    check_conversion,
    command_words,
    conversion_tree,
    option_sets,
)
from zerotools.jobs.jobfile.parse import job_from_tree

SOURCE = "--convert"


def conversion_submission(
    words: Sequence[str],
    parts: int,
    *,
    try_it: bool,
    nodes: int = 1,
    applied: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> Submission:
    """Return the job of a conversion.

    If `try_it` is true, a dry run of the conversion in a separate process reports its errors now.
    `try_it` must be false in two cases: another job writes the source, so it may not exist yet; or
    a job with the same idempotency key may already have written the output.

    Raises:
        BadRequest: the words are not a conversion, or the conversion would fail.
    """
    check_conversion(words, parts)
    try:
        directory = Path.cwd()
    except FileNotFoundError:
        raise BadRequest(
            "--convert: the current directory was removed; change to an existing directory"
        ) from None
    possible = option_sets(words, parts)
    if try_it:
        way = _tried(words, possible, parts)
    else:
        way = possible[-1]  # works for any source
        print_message("note", "the conversion is queued without a trial run")
    if parts % nodes:
        raise BadRequest(
            f"--parts {parts}: must be a multiple of --nodes {nodes}, because all nodes do the "
            "same number of parts; change one of the two numbers"
        )
    each = parts // nodes
    tree = conversion_tree(words, way, each, python=sys.executable, directory=directory)
    return Submission(SOURCE, job_from_tree(applied(tree), source=SOURCE, base_dir=directory))


def _tried(
    words: Sequence[str], possible: Sequence[tuple[str, ...]], parts: int
) -> tuple[str, ...]:
    """Try a dry run with each of the `possible` groups of options until one succeeds, and return
    the options that succeeded. `parts` is the number of parts of the output.

    Warnings of the successful dry run are printed on stderr. If no dry run succeeds, the errors of
    the last one are printed.

    Raises:
        BadRequest: no dry run succeeded.
    """
    for way in possible:
        # Only a rank of a job knows the number of its part, so the dry run uses part 1.
        options = ("--part", f"1/{parts}") if way == IN_PARTS else way
        done = subprocess.run(
            [sys.executable, *command_words(words, (*options, "--dry-run"))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode == 0:
            break
    lines = done.stderr.splitlines()
    failed = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if done.returncode == 0 or not failed:
        click.echo(done.stderr, err=True, nl=False)
    if done.returncode == 0:
        return way
    advice = "; ".join(line.removeprefix("hint: ") for line in lines if line.startswith("hint: "))
    why = (
        f"nothing was queued, because the conversion would fail: {'; '.join(failed) or 'see above'}"
    )
    raise BadRequest(f"{why}; {advice}" if advice else why)
