"""`zerotools logs`: print the output of a job's ranks."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TextIO

import click

from zerotools.cli.job_actions.job_reference import find_job, job_argument, jobs_client
from zerotools.cli.job_actions.wait_for_jobs import Poller
from zerotools.cli.job_views.describe_job import Job, is_over, outcome, title
from zerotools.cli.options.click_options import (
    OUTPUT,
    SELECTION,
    GroupedCommand,
    json_option,
    option,
    socket_option,
)
from zerotools.cli.output import render
from zerotools.core.errors import EXIT_INTERRUPTED, BadRequest, JobFailed
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import SUCCEEDED

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs


PART = 1 << 20
TAIL_BYTES = 1 << 16


@click.command("logs", cls=GroupedCommand)
@job_argument
@option("-f", "--follow", group=OUTPUT, is_flag=True, help="Follow the log until the job ends.")
@option(
    "--attempt",
    group=SELECTION,
    type=click.IntRange(min=1),
    metavar="N",
    help="Print the log of this attempt.  [default: the last]",
)
@option(
    "--rank",
    group=SELECTION,
    default="0",
    show_default=True,
    metavar="R",
    help="Print the log of this rank, or of 'all' ranks.",
)
@option(
    "-n",
    "--tail",
    group=SELECTION,
    type=click.IntRange(min=0),
    metavar="N",
    help="Begin with the last N lines of each rank.",
)
@socket_option
@json_option
def command(
    reference: str | None,
    follow: bool,
    attempt: int | None,
    rank: str,
    tail: int | None,
    socket: Path | None,
    as_json: bool,
) -> int:
    """Print the standard output and standard error of a job.

    JOB is a number or a name; without it, the newest job is meant.

    On a terminal, escape sequences are printed as text; in a pipe, the bytes of one rank stay
    unchanged. --follow includes later attempts, unless --attempt names one, and the exit status is
    6 if the job did not succeed.
    """
    client = jobs_client(socket, [reference])
    job = find_job(client, reference)
    ranks = parse_ranks(rank, job)
    output = sink(as_json=as_json, prefixed=rank == "all")
    reader = LogReader(client, job["id"], ranks, output)
    if not job["attempts"] and not follow:
        why = f": {render.clean(job['reason'])}" if job["reason"] else ""
        no_log = (
            "never started, so it has no log"
            if is_over(job)
            else "has not started, so it has no log yet"
        )
        click.echo(f"{title(job)} {no_log}{why}", err=True)
        return 0
    try:
        if tail is not None and job["attempts"]:
            reader.skip_to_tail(attempt or job["attempt"]["number"], tail)
        if follow:
            reader.follow(attempt, Poller())
        else:
            reader.copy(attempt or job["attempt"]["number"])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        reader.sink.finish()
    return 0


def parse_ranks(text: str, job: Job) -> Sequence[int]:
    """Return the ranks that `text` means: one number, or `all`. Raises BadRequest if the job has no
    such rank.
    """
    # 0: unknown, the daemon cannot read the job. An elastic job may have had more ranks before.
    world_size = max(job.get("sizes") or (int(job["world_size"]),))
    if text == "all":
        return range(world_size or 1)
    if text.isascii() and text.isdigit() and (int(text) < world_size or not world_size):
        return [int(text)]
    has = "only rank 0" if world_size == 1 else f"ranks 0 to {world_size - 1}; give one, or all"
    raise BadRequest(f"--rank {text}: {title(job)} has {has}")


class LogReader:
    """Copies the logs of some ranks of one job to a `LogSink`."""

    def __init__(
        self, client: DaemonClient | SlurmJobs, job_id: Any, ranks: Sequence[int], sink: LogSink
    ) -> None:
        self.sink = sink
        self._client = client
        self._id = job_id
        self._ranks = ranks
        self._offsets: dict[tuple[int, int], int] = {}

    def skip_to_tail(self, attempt: int, lines: int) -> None:
        """Set the position for the next copy of `attempt`: it begins with the last `lines` lines of
        each rank.
        """
        for rank in self._ranks:
            self._offsets[attempt, rank] = self._tail_offset(attempt, rank, lines)

    def _tail_offset(self, attempt: int, rank: int, lines: int) -> int:
        """Return the offset in bytes at which the last `lines` lines of a rank's log begin.

        The log is read from its end, and each request asks for twice as many bytes as the request
        before.
        """
        span = TAIL_BYTES
        while True:
            part = self._client.logs(
                self._id, attempt=attempt, rank=rank, offset=-span, limit=min(span, PART)
            )
            begin = part.next_offset - len(part.data)
            data = part.data + self._rest(attempt, rank, part.next_offset, begin + span)
            places = [found.start() for found in re.finditer(rb"\n", data[:-1])]
            if len(places) >= lines:
                return begin + (places[-lines] + 1 if lines else len(data))
            if begin == 0:
                return 0
            span *= 2

    def _rest(self, attempt: int, rank: int, offset: int, end: int) -> bytes:
        """Return the bytes [offset, end) of a log. If one answer of the daemon has only some of
        them, further requests follow.
        """
        found = b""
        while offset < end:
            part = self._client.logs(
                self._id, attempt=attempt, rank=rank, offset=offset, limit=min(PART, end - offset)
            )
            if not part.data:
                break
            found += part.data
            offset = part.next_offset
        return found

    def copy(self, attempt: int) -> bool:
        """Copy the new output of each rank. Return True if the attempt has ended and its whole
        output is copied.
        """
        done = [self._copy_rank(attempt, rank) for rank in self._ranks]
        return all(done)

    def _copy_rank(self, attempt: int, rank: int) -> bool:
        while True:
            offset = self._offsets.get((attempt, rank), 0)
            part = self._client.logs(
                self._id, attempt=attempt, rank=rank, offset=offset, limit=PART
            )
            if part.data:
                self.sink.feed(attempt, rank, part.data)
            self._offsets[attempt, rank] = part.next_offset
            if part.over or not part.data:
                return part.over

    def follow(self, only: int | None, poller: Poller) -> None:
        """Copy the log until the job has ended, or until its attempt `only` has ended.

        Raises:
            JobFailed: the job did not succeed.
        """
        current = only
        for _ in poller.rounds():
            job = poller.call(lambda: self._client.job(self._id))
            newest = job["attempt"]["number"] if job["attempt"] else 0
            current = current or newest
            ended = current > 0 and self._request_copy(poller, current)
            if ended and only is not None:
                return
            if ended and newest > current:
                current += 1
                self.sink.finish()
                sys.stderr.write(f"attempt {current} of job {self._id}\n")
            elif is_over(job):
                self.sink.finish()
                if job["state"] != SUCCEEDED:
                    raise JobFailed(f"{title(job)} {outcome(job)}")
                sys.stderr.write(f"{title(job)} {outcome(job)}\n")
                return

    def _request_copy(self, poller: Poller, attempt: int) -> bool:
        return poller.call(lambda: self.copy(attempt))


LONGEST_LINE = 1 << 16
_END = re.compile(rb"\r\n|\n|\r")


class LogSink(Protocol):
    """Receives the output of ranks as bytes, and writes it to stdout in its own form."""

    def feed(self, attempt: int, rank: int, data: bytes) -> None:
        """Take the next bytes of the output of a rank."""
        ...

    def finish(self) -> None:
        """Write the last lines that have no line break. This is called after the last `feed`."""
        ...


class RawSink:
    """Writes the bytes unchanged, for pipes and files."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def feed(self, attempt: int, rank: int, data: bytes) -> None:
        self._stream.write(data)
        self._stream.flush()

    def finish(self) -> None:
        """All bytes are written already."""


class LineSink:
    """Writes complete lines of text.

    Escape sequences are printed as text, so they cannot change the terminal. Each redraw of a
    progress bar becomes a line.
    """

    def __init__(self, stream: TextIO, *, prefixed: bool) -> None:
        self._stream = stream
        self._prefixed = prefixed
        self._pending: dict[tuple[int, int], bytes] = {}

    def feed(self, attempt: int, rank: int, data: bytes) -> None:
        """Write the complete lines, and keep the beginning of the next line until its line break
        comes.
        """
        *whole, rest = _END.split(self._pending.pop((attempt, rank), b"") + data)
        if len(rest) > LONGEST_LINE:
            whole, rest = [*whole, rest], b""
        for line in whole:
            self.line(attempt, rank, line)
        if rest:
            self._pending[attempt, rank] = rest
        self._stream.flush()

    def finish(self) -> None:
        for (attempt, rank), line in sorted(self._pending.items()):
            self.line(attempt, rank, line)
        self._pending.clear()
        self._stream.flush()

    def line(self, attempt: int, rank: int, line: bytes) -> None:
        """Write one line of a rank."""
        text = line.decode("utf-8", "replace").expandtabs()
        prefix = f"[rank {rank}] " if self._prefixed else ""
        self._stream.write(f"{prefix}{render.clean(text)}\n")


class JsonSink(LineSink):
    """Writes one JSON object for each line."""

    def __init__(self) -> None:
        super().__init__(sys.stdout, prefixed=False)

    def line(self, attempt: int, rank: int, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        render.print_json_line({"attempt": attempt, "rank": rank, "line": text})


def sink(*, as_json: bool, prefixed: bool) -> LogSink:
    """Return the `LogSink` for stdout: JSON objects, lines for a terminal, or unchanged bytes."""
    if as_json:
        return JsonSink()
    if prefixed or sys.stdout.isatty():
        return LineSink(sys.stdout, prefixed=prefixed)
    return RawSink(sys.stdout.buffer)
