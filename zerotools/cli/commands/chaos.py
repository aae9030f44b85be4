"""`zerotools chaos`: check the daemon's guarantees on this machine."""

from __future__ import annotations

import functools
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from zerotools.cli.options.click_options import json_option
from zerotools.cli.output import render
from zerotools.cli.output.colours import paint
from zerotools.cli.output.messages import print_message as say_message
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import EXIT_DIFFERENCES, EXIT_DONE
from zerotools.jobs.chaos.chaos_options import ChaosOptions, make_request
from zerotools.jobs.chaos.chaos_report import ChaosReport
from zerotools.jobs.chaos.run_chaos import run_chaos

MEANING = (
    "Effective training time: from its first start to its end, a job spends this",
    "share of the time on the steps of its final result.",
)
COLUMNS = 80
INDENT = " " * 8
SHOWN = 5
"""The largest number of sentences that are printed for one broken guarantee."""


@click.command("chaos")
@click.option(
    "--minutes",
    type=float,
    metavar="MINUTES",
    default=2.0,
    show_default=True,
    help="How long to inject faults.",
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="The same seed injects the same kinds of faults in the same order.",
)
@click.option(
    "--every",
    type=float,
    metavar="SECONDS",
    default=3.0,
    show_default=True,
    help="Mean time between two faults.",
)
@click.option(
    "--jobs",
    type=int,
    metavar="N",
    default=4,
    show_default=True,
    help="Number of toy jobs at the same time.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Make the working directory in DIR.  [default: the system's temporary directory]",
)
@click.option("--keep-directory", "keep", is_flag=True, help="Keep the working directory.")
@json_option
def command(
    minutes: float,
    seed: int | None,
    every: float,
    jobs: int,
    directory: Path | None,
    keep: bool,
    as_json: bool,
) -> int:
    """Inject faults into a test daemon on this machine, and check its promises.

    A separate zerotoolsd in a new directory runs toy jobs on the CPU. Meanwhile the processes of
    these jobs and the daemon are killed and stopped, and jobs are held and cancelled. Your queue,
    jobs and GPUs are not touched. The exit status is 1 if a promise was broken.
    """
    request = make_request(
        minutes=minutes, seed=seed, every=every, jobs=jobs, directory=directory, keep=keep
    )
    return perform(request, as_json=as_json)


def perform(request: ChaosOptions, *, as_json: bool) -> int:
    """Run the fault injection and print its progress, on stderr if stdout has JSON."""
    stream = sys.stderr if as_json else sys.stdout
    log_line = functools.partial(print, file=stream, flush=True)
    log_line(
        f"{count_text(request.jobs, 'toy job')} run at the same time, "
        f"{render.duration(request.trouble_seconds)} of faults, one every {request.every:g} s, "
        f"seed {request.seed}"
    )
    try:
        report = run_chaos(request, log_line)
    except KeyboardInterrupt:
        say_message("note", "interrupted; all started processes are stopped")
        raise
    if as_json:
        render.print_json(report.to_json())
    else:
        render.print_lines(lines_of(report))
    return EXIT_DONE if report.is_upheld else EXIT_DIFFERENCES


def lines_of(report: ChaosReport) -> Iterator[str]:
    """Yield the lines of the report that is printed at the end."""
    tally = report.tally
    yield ""
    rows = [(kind, str(count)) for kind, count in report.by_kind.items()]
    yield from render.table(
        ("fault", "times"), [*rows, ("all", str(len(report.faults)))], right=("times",)
    )
    yield ""
    ends = ", ".join(f"{count} {state}" for state, count in sorted(report.states.items()))
    kept = f" ({tally.kept:.1%})" if tally.steps_run else ""
    yield from render.fields(
        [
            ("jobs", f"{sum(report.states.values())}: {ends}"),
            ("restarts", f"jobs {report.restarts}, daemon {report.daemon_starts - 1}"),
            ("resumed", f"{report.resumed} jobs after a hold" if report.resumed else ""),
            ("steps run", str(tally.steps_run)),
            ("steps kept", f"{tally.steps_kept}{kept}"),
            ("effective training time", f"{tally.effective:.1%}" if tally.seconds else "-"),
            ("took", render.duration(report.seconds)),
        ]
    )
    yield from MEANING
    yield ""
    for promise in report.promises:
        word, meaning = ("held", "good") if promise.is_upheld else ("broken", "bad")
        yield f"{paint(word.ljust(6), meaning, sys.stdout)}  {promise.text}"
        for sentence in promise.broken[:SHOWN]:
            yield from _wrapped(sentence)
        if len(promise.broken) > SHOWN:
            yield f"{INDENT}and {len(promise.broken) - SHOWN} more"
    yield ""
    broken = sum(not promise.is_upheld for promise in report.promises)
    if broken:
        yield f"{broken} of {len(report.promises)} promises were broken."
    else:
        yield f"All {len(report.promises)} promises held."
    if report.place is not None:
        yield f"The queue, logs and notes are in {render.clean(str(report.place))}"


def _wrapped(sentence: str) -> Iterator[str]:
    """Yield the indented lines of a sentence about a guarantee. Line breaks in text from a log are
    kept.
    """
    for line in sentence.splitlines():
        yield from textwrap.wrap(
            render.clean(line),
            COLUMNS - 1,
            initial_indent=INDENT,
            subsequent_indent=INDENT,
            break_long_words=False,  # a path stays whole, so that it can be copied
            break_on_hyphens=False,
        )
