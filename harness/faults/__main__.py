"""Kills daemons, supervisors and ranks at every system call that makes data durable.

    python -m harness.faults [--errors] [--story WORDS] [--sample N --seed S] [--jobs N]

Many short stories are run. Each process runs under `strace -e inject=...:signal=KILL:when=N`, which
kills it exactly before its N-th call. Then the other processes continue, and `harness.invariants`
checks the result. With `--errors`, calls from the N-th on fail with ENOSPC, EIO or EMFILE instead,
and no job may fail because of that. The jobs write a line when they begin and a line when they end,
so that a second run of a job is visible.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.faults import tracing
from harness.faults.attempts import attempt_stories
from harness.faults.copies import copy_stories
from harness.faults.daemons import make_tensors
from harness.faults.points import Found, Point, Story, Totals, points_of, sampled
from harness.faults.stories import daemon_stories
from harness.forked import close_servers
from harness.left_groups import remove_groups

NOT_RUN = 77
MEMORY = Path("/dev/shm")


class Run:
    """Runs stories with faults, several at a time, each in a new directory."""

    def __init__(self, directory: Path, jobs: int) -> None:
        self.directory = directory
        self.totals = Totals()
        self._pool = ThreadPoolExecutor(jobs)
        self._number = 0

    def all_of(self, work: list[tuple[str, Story, tracing.Injection | None]]) -> list[Found]:
        """Run each of `work`, and return the results in the same order.

        An item of `work` is (a name for messages, the story, the injection).
        """
        places = [self.directory / f"p{self._number + n}" for n in range(len(work))]
        self._number += len(work)
        return list(self._pool.map(self._one, work, places))

    def _one(self, work: tuple[str, Story, tracing.Injection | None], place: Path) -> Found:
        where, story, injection = work
        began = time.monotonic()
        try:
            found = story.run(place, injection)
        except Exception:  # a point that cannot be tried is reported, and the others are tried
            found = Found(wrong=[f"cannot be tried: {traceback.format_exc()}"])
        found.seconds = time.monotonic() - began
        for sentence in found.wrong:
            print(f"{where}: {sentence}", file=sys.stderr, flush=True)
        remove_groups(place)
        shutil.rmtree(place, ignore_errors=True)
        return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit status.

    The status is 1 if a job was lost, ran twice or failed, or if a process was left. It is 77
    without strace.
    """
    options = _parser().parse_args(arguments)
    if not tracing.is_installed():
        print("not run: strace is not installed")
        return NOT_RUN
    place = MEMORY if MEMORY.is_dir() else None
    try:
        with tempfile.TemporaryDirectory(prefix="zerotools-", dir=place) as directory:
            return _run(options, Path(directory))
    finally:
        close_servers()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--errors", action="store_true", help="let system calls fail instead of killing processes"
    )
    parser.add_argument(
        "--story", action="append", help="try only stories with these words in their names"
    )
    parser.add_argument(
        "--call",
        action="append",
        choices=(*tracing.CALLS, *tracing.OPENING),
        help="try only this system call",
    )
    parser.add_argument("--at", type=int, help="try only the N-th call")
    parser.add_argument("--sample", type=int, metavar="N", help="try only N of the points")
    parser.add_argument("--seed", type=int, default=1, help="the seed of --sample")
    parser.add_argument(
        "--jobs", type=int, default=2, help="number of points that are tried at the same time"
    )
    parser.add_argument("--list", action="store_true", help="only count the calls of each story")
    return parser


def stories_in(directory: Path) -> list[Story]:
    """Return all stories. The files with which they begin are made in `directory`."""
    tensors = make_tensors(directory)
    return [*attempt_stories(tensors), *daemon_stories(tensors), *copy_stories(directory, tensors)]


def _run(options: argparse.Namespace, directory: Path) -> int:
    began = time.monotonic()
    stories = [
        story
        for story in stories_in(directory)
        if not options.story or any(words in story.name for words in options.story)
    ]
    run = Run(directory, options.jobs)
    untouched = run.all_of([(f"{story.name}, untouched", story, None) for story in stories])
    points: list[Point] = []
    for story, found in zip(stories, untouched, strict=True):
        counts = ", ".join(f"{call} {n}" for call, n in sorted(found.calls.items()))
        print(f"{story.name}: {sum(found.calls.values())} calls: {counts}", flush=True)
        if not found.calls:
            found.wrong.append("no call was counted: strace has written nothing")
        run.totals.note(f"{story.name}, untouched", found.wrong)
        points += points_of(story, found.calls, kills=not options.errors, errors=options.errors)
    points = [p for p in points if not options.call or p.injection.call in options.call]
    points = [p for p in points if options.at in (None, p.injection.number)]
    chosen = [] if options.list else sampled(points, options.sample, options.seed)
    for point, found in zip(
        chosen, run.all_of([(str(p), p.story, p.injection) for p in chosen]), strict=True
    ):
        run.totals.add(str(point), found)
    _print(options, run.totals, len(points), time.monotonic() - began)
    return 1 if run.totals.sentences else 0


def _print(options: argparse.Namespace, totals: Totals, exist: int, seconds: float) -> None:
    if totals.sentences:
        print(json.dumps(totals.sentences, indent=1))
    sample = f", seed {options.seed}" if options.sample else ""
    print(
        f"{totals.points} of {exist} points tried in {seconds:.0f} s{sample}; at {totals.missed} "
        f"of them the call was not made; {totals.unseen} ranks ended unseen by every process; "
        f"the longest took {totals.longest[0]:.1f} s: {totals.longest[1]}"
    )
    print(totals)


if __name__ == "__main__":
    sys.exit(main())
