"""Why a node ended, for the others, which notice no more than that its connections are closed.

A note lies in output_dir, which all nodes share, under the token of the meeting. It is of what
would end the same way again: a mistake in the job, a checkpoint that cannot be used. Whoever loses
another looks for one, and ends with it, rather than waiting for a node that will not come again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.rank.failures import EXIT_BAD_CHECKPOINT, EXIT_BAD_JOB, exit_code, sentence
from zerotoolsd.trainer.rank.group import WorldGroup
from zerotoolsd.trainer.rank.meeting import FAILED

LOOK_SECONDS = 3.0
"""How long a note may take to be seen: the node writes it before its connections close."""
_PAUSE_SECONDS = 0.1
_LARGEST = 1 << 16


@contextmanager
def failures_told(directory: Path, group: WorldGroup) -> Iterator[None]:
    """What ends this node for good is noted for the others, and what they have noted ends it.

    Raises:
        BadRequest: another node ended so; with its sentence.
    """
    if group.rank.nodes == 1:
        yield
        return
    note = directory / f"{FAILED}{group.meeting}"
    try:
        yield
    except BaseException as error:  # raised again, or what another node said
        if exit_code(error) in (EXIT_BAD_JOB, EXIT_BAD_CHECKPOINT):
            _write(note, f"node {group.rank.node}: {sentence(error)}")
        elif isinstance(error, RuntimeError) and (told := _read(note)) is not None:
            raise BadRequest(told) from error
        raise


def _write(note: Path, text: str) -> None:
    with suppress(OSError), note.open("x", encoding="utf-8") as file:  # the first one counts
        file.write(json.dumps(text[:_LARGEST]))


def _read(note: Path) -> str | None:
    until = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < until:
        with suppress(OSError, ValueError):
            found = json.loads(note.read_text("utf-8")[: 2 * _LARGEST])
            return found if isinstance(found, str) else None
        time.sleep(_PAUSE_SECONDS)
    return None
