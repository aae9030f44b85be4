"""`zerotools edit`: change the job file of a job that has not started."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_actions.job_reference import find_job, job_numbers, one_job_argument
from zerotools.cli.job_views.describe_job import Job, how_it_waits, keys_set_by_author, plan, title
from zerotools.cli.options.click_options import (
    JOB,
    WHEN,
    GroupedCommand,
    json_option,
    option,
    socket_option,
)
from zerotools.cli.options.submission_options import dependencies, time_of
from zerotools.cli.output import render
from zerotools.core.errors import BadRequest
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.imports.reading.look_up_job_keys import job_keys
from zerotools.jobs.job_arrays import values_of

_HIDDEN = ("env", "captured_env")
_NOW = "now"


@click.command("edit", cls=GroupedCommand)
@one_job_argument
@option(
    "--set",
    "given",
    group=JOB,
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a key; repeatable.",
)
@option("--unset", group=JOB, metavar="KEY", multiple=True, help="Reset a key to its default.")
@option(
    "--after",
    group=WHEN,
    metavar="JOB[:ok|any]",
    multiple=True,
    help="Start after these jobs; replaces the earlier --after.",
)
@option(
    "--begin",
    group=WHEN,
    metavar="WHEN",
    help="Start at this time or later: +2h, 22:30, 2027-01-31T22:30; now: as soon as possible. "
    "Replaces the earlier --begin.",
)
@socket_option
@json_option
def command(
    reference: str,
    given: tuple[str, ...],
    unset: tuple[str, ...],
    after: tuple[str, ...],
    begin: str | None,
    socket: Path | None,
    as_json: bool,
) -> None:
    """Change a job before its first start: the keys of its job file, or its conditions.

    Without options, the keys of the job open in $EDITOR, as JSON. Values of --set are TOML, or
    plain words. The changed job is checked like a new one. Environment variables are not shown;
    --set env.NAME=VALUE sets one. --after and --begin are for a waiting or held job. For other
    changes, use the commands `priority`, `hold` and `release`.
    """
    client = DaemonClient(socket)
    job = find_job(client, reference)
    changes: dict[str, Any] = {}
    if given or unset or after or begin is not None:
        changes = {"set": dict(_one(text) for text in given), "unset": list(unset)}
        if after:
            changes["after"] = dependencies(lambda word: job_numbers(client, word), after)
        if begin is not None:
            changes["begin"] = 0 if begin == _NOW else time_of(begin, time.time())
    elif not (sys.stdin.isatty() or os.environ.get("VISUAL") or os.environ.get("EDITOR")):
        raise BadRequest(
            "without options, edit opens an editor, which needs a terminal; give --set or --unset"
        )
    else:
        changes = _from_editor(job)
    edited = client.edit(int(job["id"]), changes)
    if as_json:
        render.print_json({"jobs": [edited]})
        return
    click.echo(f"{title(edited)} is {how_it_waits(edited)}: {plan(edited)}")


def _one(text: str) -> tuple[str, Any]:
    try:
        key, values = values_of(text)
    except BadRequest:
        raise BadRequest(f"--set {text}: must be KEY=VALUE, such as train.steps=80") from None
    if key.startswith("env."):
        return key, text.partition("=")[2]
    # A comma is a part of the value here, unless it divides a list of TOML.
    return key, values[0] if len(values) == 1 else text.partition("=")[2].strip()


def _from_editor(job: Job) -> dict[str, Any]:
    """Let the user edit the keys of the job as JSON in $EDITOR. Return the changed keys with their
    values (`set`), and the removed keys (`unset`).

    Raises:
        BadRequest: the user changed nothing, or the text is not JSON.
    """
    before = {key: value for key, value in keys_set_by_author(job).items() if key not in _HIDDEN}
    text = click.edit(json.dumps(before, indent=2, ensure_ascii=False) + "\n", extension=".json")
    if text is None:
        raise BadRequest("the job was not changed in the editor")
    try:
        after = json.loads(text)
    except ValueError as error:
        raise BadRequest(
            f"the text from the editor is not JSON: {error}; nothing was changed; run the command "
            "again"
        ) from None
    if not isinstance(after, dict):
        raise BadRequest(
            "the text from the editor is not a JSON object; nothing was changed; run the command "
            "again"
        )
    old, new = dict(_flat(before)), dict(_flat(after))
    changed = {key: value for key, value in new.items() if key not in old or old[key] != value}
    gone = [key for key in old if key not in new]
    if not changed and not gone:
        raise BadRequest("the job was not changed in the editor")
    return {"set": changed, "unset": gone}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key not in job_keys():
            yield from _flat(value, f"{key}.")
        else:
            yield key, value
