"""Passes on the reports and logs of a job's ranks under Slurm, to the files that the daemon
reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.telemetry.datagrams import Sender
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs

_PART = 1 << 18
MOST_LOG_BYTES = 64 << 20
"""Limit of each rank's log, for one attempt here; the complete log is in the job's own
directory."""
TOLD = frozenset(
    {
        *("step", "checkpoint", "eval", "phase", "resumed", "skipped_checkpoint", "error"),
        *("fetched", "uploaded", "upload_failed"),
    }
)


class Relay:
    """Passes on the job `name`. Rank 0's lines go to standard output, those of others into files
    next to it."""

    def __init__(self, jobs: SlurmJobs, name: str, sender: Sender, run_dir: Path) -> None:
        self._jobs, self._name, self._sender, self._run_dir = jobs, name, sender, run_dir
        self._attempt = 0
        self._since = 0
        self._offsets: dict[int, int] = {}
        self._written: dict[int, int] = {}

    def catch_up(self, view: dict[str, Any]) -> None:
        """Pass on everything that exists now, of the newest attempt."""
        numbers = [each["number"] for each in view["attempts"]]
        while numbers:
            current = self._attempt or numbers[-1]
            if self._attempt != current:
                self._begin(current)
            if current in numbers:
                self._tell()
                for rank in range(int(view["world_size"])):
                    self._copy(rank)
            later = [number for number in numbers if number > current]
            if not later:
                return
            self._begin(later[0])

    def _begin(self, attempt: int) -> None:
        self._attempt, self._since = attempt, 0
        self._offsets.clear()

    def _tell(self) -> None:
        while True:
            try:
                answer = self._jobs.progress(self._name, attempt=self._attempt, since=self._since)
            except BadRequest:
                return
            for record in answer["records"]:
                if record.get("event") in TOLD and record.get("event") != "error":
                    self._sender.send(record, wait=True)
            if answer["next"] == self._since:
                return
            self._since = answer["next"]

    def _copy(self, rank: int) -> None:
        while True:
            offset = self._offsets.get(rank, 0)
            part = self._jobs.logs(
                self._name, attempt=self._attempt, rank=rank, offset=offset, limit=_PART
            )
            if not part.data:
                return
            self._offsets[rank] = part.next_offset
            room = MOST_LOG_BYTES - self._written.get(rank, 0)
            data = part.data[: max(0, room)]
            self._written[rank] = self._written.get(rank, 0) + len(data)
            if rank == 0:
                os.write(1, data)
            elif data:
                with (self._run_dir / f"rank-{rank}.log").open("ab") as file:
                    file.write(data)
