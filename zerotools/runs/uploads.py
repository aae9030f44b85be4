"""What a job notes beside its checkpoints of those that are copied to an object store.

    <output_dir>/.uploads/run.json    which run's checkpoints these are, as the store has it, too
                         /sending     text: the directory that is being sent, which is not deleted

Standard library only: the training process uses it too.
"""

from __future__ import annotations

import json
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.io.files.json_file import read_json
from zerotools.io.files.regular import read_regular
from zerotools.runs.manifest import write_durably

UPLOADS = ".uploads"
FETCHED = ".resumed-from"
"""In the output directory: the checkpoint that `resume_from` names in a store, on this disk."""
_RUN = "run.json"
_SENDING = "sending"
_LARGEST = 4096


def known_run(output_dir: Path) -> str | None:
    """Whose checkpoints are in `output_dir`, as its uploads say; None: nothing was uploaded."""
    try:
        tree = read_json(output_dir / UPLOADS / _RUN, _LARGEST, is_source=False)
    except (OSError, ValueError, BadFile):
        return None
    found = tree.get("run") if isinstance(tree, dict) else None
    return found if isinstance(found, str) else None


def note_run(output_dir: Path, run: str) -> None:
    """The checkpoints in `output_dir` are those of `run`. Raises OSError."""
    (output_dir / UPLOADS).mkdir(parents=True, exist_ok=True)
    write_durably(output_dir / UPLOADS / _RUN, json.dumps({"run": run}) + "\n")


def being_sent(output_dir: Path) -> Path | None:
    """The checkpoint that is being sent, or was when whoever sent it was killed."""
    try:
        name = read_regular(output_dir / UPLOADS / _SENDING, _LARGEST, is_source=False)
        return output_dir / name.decode().strip()
    except (OSError, UnicodeDecodeError, BadFile):
        return None


def note_sending(output_dir: Path, path: Path | None) -> None:
    """`path` is sent from now on; None: nothing is. Raises OSError."""
    note = output_dir / UPLOADS / _SENDING
    if path is None:
        note.unlink(missing_ok=True)
    else:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_durably(note, path.name + "\n")
