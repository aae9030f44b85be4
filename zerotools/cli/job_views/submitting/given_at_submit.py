"""The settings of jobs that a command gives and files do not: environment, node, notifications."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from zerotools.cli.output import render
from zerotools.cli.output.messages import say
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.environment import OF_SLURM, capture, named, with_environment
from zerotools.jobs.client.remote.elsewhere import Elsewhere
from zerotools.jobs.client.submissions import Submission
from zerotools.jobs.tables.notify import masked_url, wrong_url
from zerotools.jobs.tables.spec import SLURM, JobSpec, with_key


def with_given_environment(
    jobs: Sequence[Submission], options: Sequence[str], machine: Elsewhere | None
) -> list[Submission]:
    """Return the jobs with the captured variables of their environment."""
    named_ones = named(options, os.environ)
    captured = capture(os.environ if machine is None else machine.environment)
    given = {*named_ones, *(name for each in jobs for name in each.spec.env)}
    if left := [name for name in captured.secret if name not in given]:
        say(
            "note",
            f"not passed to the job, because they look like secrets: {', '.join(left)}; --env "
            f"{left[0]} passes one",
        )
    if captured.not_text:
        names = ", ".join(map(render.clean, captured.not_text))
        say("note", f"not passed to the job, because their values are not text in UTF-8: {names}")
    of_slurm = {name: os.environ[name] for name in OF_SLURM if name in os.environ}
    return [
        replace(
            each,
            spec=with_environment(
                each.spec,
                captured.taken | (of_slurm if each.spec.backend == SLURM else {}),
                named_ones,
            ),
        )
        for each in jobs
    ]


def on_node_rank(submission: Submission, node_rank: int) -> JobSpec:
    """Return the job for one of its nodes.

    Raises:
        BadRequest: it has fewer nodes.
    """
    spec = submission.spec
    nodes = spec.rendezvous.nodes
    if node_rank >= nodes:
        has = "has no [rendezvous]" if nodes == 1 else f"counts its {nodes} nodes from 0"
        raise BadRequest(f"{submission.source}: --node-rank {node_rank}: the job {has}")
    return with_key(spec, "rendezvous", node_rank=node_rank)


def with_webhook(spec: JobSpec, url: str) -> JobSpec:
    """Return the job, which sends to `url`. Raises BadRequest."""
    if (why := wrong_url(url)) is not None:
        raise BadRequest(f"--notify {masked_url(url)}: {why}")
    return with_key(spec, "notify", webhook=url)
