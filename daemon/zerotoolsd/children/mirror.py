"""Copies checkpoints to an object store, or fetches them: `mirror.py upload|fetch SETTINGS`.

Both commands run as separate processes, as the user of the job and with the daemon's interpreter.
`upload_missing` runs next to the ranks, once for each new checkpoint, and again at the end.
`fetch_start_checkpoint` runs before the ranks of an attempt start. SETTINGS is JSON, which
`attempts/prepare_run_directory` writes:

    output_dir, job             the job's directory, and the name of the job in the store
    upload_to                   the destination of the job's checkpoints; null: no upload
    keep_last, keep_every       the checkpoints that stay in the store
    resume_from                 the URL of the checkpoint to fetch, or null

Both commands also report to the supervisor. Exit status 75 means that the store does not respond
now, or that the disk is full.
"""

from __future__ import annotations

import errno
import json
import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerotools.runs.find_job_checkpoints import SkippedCheckpoint

PRIORITY = 10
MEMORY_BYTES = 128 * 2**20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_TRIES = 3
_FIRST_WAIT = 10.0


def upload_missing(settings: dict[str, Any]) -> int:
    """Upload the checkpoints that the store lacks. Return 0 if all were uploaded, else 1.

    Raises:
        ZerotoolsError: the store refuses further uploads.
    """
    from zerotools.core.counts_and_sizes import count_text
    from zerotools.ops.execution.tile_workers import MemoryBudget
    from zerotools.ops.mirroring.send_copy import SentCopy

    mirror, began, left = _mirror(settings), time.monotonic(), list[str]()

    def sent(path: Path, url: Path, copy: SentCopy) -> None:
        nonlocal began
        seconds, began = time.monotonic() - began, time.monotonic()
        print(f"uploaded {url}: {copy.sent_bytes} bytes in {seconds:.1f} s", flush=True)
        _send_event("uploaded", path.name, path=str(url), bytes=copy.sent_bytes, seconds=seconds)

    def failed(path: Path, why: str) -> None:
        left.append(_one_line(why))
        print(left[-1], file=sys.stderr, flush=True)
        _send_event("upload_failed", path.name, why=left[-1])

    if mirror.send_all(MemoryBudget(MEMORY_BYTES, 4), sent, failed):
        return 0
    # Last, because others may have been sent since: the log's last line is shown.
    print(f"{count_text(len(left), 'checkpoint')} not uploaded: {left[0]}", file=sys.stderr)
    return 1


def fetch_start_checkpoint(settings: dict[str, Any]) -> int:
    """Fetch the checkpoint to continue from, and return 0.

    Raises:
        ZerotoolsError: the checkpoint cannot be fetched, or another run uses the destination.
    """
    from zerotools.core.errors import ZerotoolsError
    from zerotools.io.stores.parse_url import lies_in, path_of
    from zerotools.io.stores.store_path import StorePath
    from zerotools.ops.mirroring.checkpoint_mirror import fetch_start

    began, given = time.monotonic(), settings["resume_from"]
    place, path = settings["upload_to"], None
    if place is not None:
        mirror = _mirror(settings)
        try:
            path = mirror.fetch(given, _skipped)
        except ZerotoolsError as error:
            if not mirror.can_go_on():
                raise
            why = f"{_one_line(error)}; the run continues with its checkpoints on the disk"
            print(why, file=sys.stderr, flush=True)
            _send_event("upload_failed", "", why=why)
    if given is not None and (place is None or not lies_in(given, place)):
        source = path_of(given)
        assert isinstance(source, StorePath)
        path = fetch_start(Path(settings["output_dir"]), source, _skipped) or path
    if path is not None:
        seconds = time.monotonic() - began
        print(f"fetched {path} in {seconds:.1f} s", flush=True)
        _send_event("fetched", path.name, path=str(path), seconds=seconds)
    return 0


def _skipped(copy: SkippedCheckpoint) -> None:
    print(f"skipped {copy.path}: {_one_line(copy.why)}", flush=True)
    _send_event("skipped_checkpoint", copy.path.name, path=str(copy.path), why=_one_line(copy.why))


def _mirror(settings: dict[str, Any]) -> Any:
    from zerotools.io.stores.parse_url import path_of
    from zerotools.io.stores.store_path import StorePath
    from zerotools.ops.mirroring.checkpoint_mirror import Mirror
    from zerotools.runs.deletable_checkpoints import KeepRule

    place = path_of(settings["upload_to"])
    assert isinstance(place, StorePath)
    rule = KeepRule(settings["keep_last"], settings["keep_every"])
    return Mirror(Path(settings["output_dir"]), place, settings["job"], rule)


def _send_event(event: str, name: str, **fields: Any) -> None:
    from zerotools.io.telemetry.datagram_sender import Sender
    from zerotools.runs.find_job_checkpoints import step_of

    sender = Sender(os.environ.get("ZEROTOOLS_NOTIFY"))
    tree = {"event": event, "step": step_of(name), "time": time.time(), **fields}
    sender.send(tree, wait=True)
    sender.close()


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def main(arguments: Sequence[str], wait: Any = time.sleep) -> int:
    """Run the command line; return the exit status."""
    from zerotools.core.errors import HostUnreachable, ZerotoolsError

    what, settings = arguments[0], json.loads(arguments[1])
    act = {"upload": upload_missing, "fetch": fetch_start_checkpoint}[what]
    os.nice(PRIORITY)
    for tried in range(1, _TRIES + 1):
        try:
            return act(settings)
        except HostUnreachable as error:
            print(_one_line(error), file=sys.stderr, flush=True)
            if tried == _TRIES:
                if what == "upload":
                    _send_event("upload_failed", "", why=_one_line(error))
                return os.EX_TEMPFAIL
            wait(_FIRST_WAIT * 2 ** (tried - 1))
        except (ZerotoolsError, OSError) as error:
            print(_one_line(error), file=sys.stderr, flush=True)
            if what == "upload":
                _send_event("upload_failed", "", why=_one_line(error))
            return os.EX_TEMPFAIL if getattr(error, "errno", None) in _NO_ROOM else 1
    raise AssertionError


if __name__ == "__main__":
    # The daemon's interpreter may have another zerotools, or none that can be found from here.
    runpy.run_path(str(Path(__file__).parents[1] / "trainer" / "entry.py"))["make_importable"]()
    raise SystemExit(main(sys.argv[1:]))
