"""`zerotools submit`: check job files, queue the jobs, and follow one on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from zerotools.cli.job_actions.conversion_submission import conversion_submission
from zerotools.cli.job_actions.daemon_submission import (
    check_all,
    dry_run_json,
    on_node_rank,
    queue_all,
    submit_array,
    with_environment_options,
    with_webhook,
)
from zerotools.cli.job_actions.follow_progress import follow_submitted
from zerotools.cli.job_actions.job_reference import job_numbers, submits_without_daemon
from zerotools.cli.job_actions.wait_for_jobs import Poller
from zerotools.cli.job_views.describe_job import (
    Job,
    how_it_waits,
    plan,
    title,
    usual_start,
)
from zerotools.cli.job_views.training_examples import example_lines
from zerotools.cli.options.click_options import (
    JOB,
    OUTPUT,
    WHEN,
    GroupedCommand,
    given_as,
    json_option,
    option,
    socket_option,
)
from zerotools.cli.options.import_options import Configs, config_options, read_job_file
from zerotools.cli.options.submission_options import (
    NO_SLURM,
    ArrayOptions,
    SlurmOptions,
    WaitingOptions,
    array_options,
    slurm_options,
    waiting_options,
)
from zerotools.cli.output import render
from zerotools.cli.output.messages import command_name, print_message
from zerotools.core.errors import BadRequest, DaemonUnreachable
from zerotools.jobs.client.daemon_address import RemoteMachine, machine_behind
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.submission_conflicts import Submission
from zerotools.jobs.imports.combine_configs import CONFIG
from zerotools.jobs.imports.reading.look_up_job_keys import look_up
from zerotools.jobs.job_arrays import members_of
from zerotools.jobs.jobfile.parse import given_of, job_from_dict, job_from_tree, job_to_dict
from zerotools.jobs.jobfile_tables.check_store_urls import in_store
from zerotools.jobs.jobfile_tables.rendezvous import MOST_NODES
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.submit_timeout import reads_data


@dataclass(frozen=True, kw_only=True)
class _Work:
    """The jobs to submit: job files, or with `convert` the words of one conversion by `parts`
    processes.
    """

    job_files: tuple[str, ...]
    convert: bool
    parts: int | None


@dataclass(frozen=True, kw_only=True)
class _JobChanges:
    """The values of options that replace or extend keys of the job files."""

    name: str | None
    node_rank: int | None
    env_options: tuple[str, ...]
    notify: str | None

    def applied(self, jobs: list[Submission], machine: RemoteMachine | None) -> list[Submission]:
        if self.name is not None:
            jobs = [replace(each, spec=replace(each.spec, name=self.name)) for each in jobs]
        jobs = with_environment_options(jobs, self.env_options, machine)
        if self.node_rank is not None:
            jobs = [replace(each, spec=on_node_rank(each, self.node_rank)) for each in jobs]
        if self.notify is not None:
            jobs = [replace(each, spec=with_webhook(each.spec, self.notify)) for each in jobs]
        return jobs


@dataclass(frozen=True, kw_only=True)
class _Mode:
    """The options that determine what `submit` does with the jobs.

    Attributes:
        idempotency_key: if not None, a second submit with this key queues no second job.
        dry_run: check the jobs, and queue none.
        show: the number of examples that a dry run prints; None: print none.
        follow: show the progress until the job has ended.
        as_json: print JSON.
    """

    idempotency_key: str | None
    dry_run: bool
    show: int | None
    follow: bool
    as_json: bool


@click.command("submit", cls=GroupedCommand)
@click.argument(
    "job_files", metavar="JOBFILE...", nargs=-1, required=True, type=click.Path(allow_dash=True)
)
@option(
    "-f",
    "--follow",
    group=OUTPUT,
    is_flag=True,
    help="Show the progress until the job has ended.",
)
@option(
    "--convert",
    group=JOB,
    is_flag=True,
    help="Queue a conversion: give -- consolidate|reshard|convert|verify ... and no job files.",
)
@option(
    "--parts",
    group=JOB,
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Number of processes for --convert; each does one part.  [default: 1]",
)
@option(
    "--node-rank",
    group=WHEN,
    type=click.IntRange(0, MOST_NODES - 1),
    metavar="N",
    help="Number of this machine among the machines of the job; replaces rendezvous.node_rank.",
)
@option(
    "--name",
    group=JOB,
    metavar="NAME",
    help="Name of the job, instead of the name in its file.",
)
@option(
    "--idempotency-key",
    group=JOB,
    metavar="KEY",
    help="A name of your choice for this submit: two submits with the same KEY queue one job.",
)
@array_options
@slurm_options
@waiting_options
@option(
    "--env",
    "env_options",
    group=JOB,
    metavar="NAME[=VALUE]",
    multiple=True,
    help="Pass a variable to the job, with VALUE or with its value in your shell. May be repeated.",
)
@option(
    "--notify",
    group=JOB,
    metavar="URL",
    help="Send the events of the jobs to this URL; replaces notify.webhook of the job file.",
)
@config_options
@option(
    "--dry-run",
    group=OUTPUT,
    is_flag=True,
    help="Check the jobs and the shapes of their models; queue nothing.",
)
@option(
    "--show",
    group=OUTPUT,
    type=click.IntRange(1, 20),
    metavar="N",
    help="With --dry-run: print the first N examples in the form that the model gets.",
)
@socket_option
@json_option
@given_as("work", _Work)
@given_as("changes", _JobChanges)
@given_as("mode", _Mode)
def command(
    work: _Work,
    changes: _JobChanges,
    waiting: WaitingOptions,
    array: ArrayOptions,
    slurm: SlurmOptions,
    configs: Configs,
    mode: _Mode,
    socket: Path | None,
) -> int:
    """Queue one or more training jobs.

    A JOBFILE is TOML or JSON; if it is -, it is read from standard input. Relative paths in it
    begin at its directory. All jobs are checked, also against one another, before the first is
    queued.

    With --deepspeed or --accelerate, the job consists of JOBFILE and the config, as zerotools
    import prints it. Standard error has the result for each key of the config.

    A job gets these variables of your environment: PATH, HOME, LANG, variables of Python
    environments, of Hugging Face, torch, NCCL and CUDA, and proxies. Use --env NAME for secrets and
    for other variables. The job gets no variables of the daemon.

    With --idempotency-key, an interrupted script can submit again: the daemon returns the job that
    it queued under this key before.

    With --convert, the words after -- are a command that writes or verifies a checkpoint, as you
    would type it here. The command runs as a job on CPUs; with --parts N, the job has N processes.
    After an interruption it continues.

    With --follow, Ctrl-C leaves the job running, and the exit status is 6 if the job fails.
    """
    job_files, parts = work.job_files, work.parts
    follow, dry_run, show, as_json = mode.follow, mode.dry_run, mode.show, mode.as_json
    idempotency_key = mode.idempotency_key
    single = {
        "--follow": follow,
        "--name": changes.name,
        "--idempotency-key": idempotency_key,
        "--sweep or --array": array.is_given,
    }
    if (
        not work.convert
        and len(job_files) > 1
        and (option := next(filter(single.get, single), None))
    ):
        raise BadRequest(
            f"{option} is for one job file, but {len(job_files)} are given; submit each file with "
            "a separate command"
        )
    if array.is_given and follow:
        raise BadRequest("--follow follows one job; wait for an array with zerotools wait @JOB")
    sweep = array.sweep()
    if dry_run and follow:
        raise BadRequest(
            "--dry-run starts no job that --follow could follow; leave one of the two out"
        )
    if show is not None and (not dry_run or array.is_given or work.convert):
        raise BadRequest(
            "--show works only with --dry-run and job files; add --dry-run, or leave --show out"
        )
    if waiting.hold and follow:
        raise BadRequest("--follow would wait for a held job; omit --follow or --hold")
    machine = machine_behind(socket)
    if parts is not None and not work.convert:
        raise BadRequest(
            "--parts divides a conversion (--convert), not a training; leave --parts out"
        )
    if work.convert:
        _refuse_of_training(configs, array, machine)
        jobs = [
            conversion_submission(
                job_files,
                parts or 1,
                try_it=not (waiting.after or idempotency_key),
                nodes=slurm.nodes,
                applied=slurm.applied,
            )
        ]
    else:
        jobs = [
            Submission(_source(path), _job(path, configs, machine, slurm)) for path in job_files
        ]
    jobs = changes.applied(jobs, machine)
    if machine is None:
        asked = _members(jobs[0], sweep, array.count) if array.is_given else jobs
        _check_stores(asked, writes=not dry_run)
    client = DaemonClient(socket)
    if submits_without_daemon(client, jobs, no_daemon=slurm.no_daemon, dry_run=dry_run):
        from zerotools.cli.job_actions.slurm_submission import (  # needed only here
            members_for_slurm,
            submit_to_slurm,
        )

        if show is not None:
            raise BadRequest("--show needs a daemon, which Slurm jobs do not use; leave --show out")
        if array.is_given:
            jobs = members_for_slurm(jobs[0], sweep, array.count)
        return submit_to_slurm(
            jobs,
            waiting.terms,
            machine,
            key=idempotency_key,
            dry_run=dry_run,
            follow=follow,
            as_json=as_json,
        )
    if terms := waiting.terms(lambda word: job_numbers(client, word)):
        jobs = [replace(each, terms=terms) for each in jobs]
    if array.is_given:
        return submit_array(client, jobs[0], sweep, array.count, idempotency_key, dry_run, as_json)
    if dry_run:
        return _rehearse(client, jobs, as_json, show or 0)
    queued = _queue(client, jobs, as_json, idempotency_key)
    if follow:
        return follow_submitted(client, queued[0], Poller(), as_json=as_json)
    if not as_json:
        _print_next_steps(queued[-1])
    return 0


def _refuse_of_training(
    configs: Configs, array: ArrayOptions, machine: RemoteMachine | None
) -> None:
    if configs.any or configs.lenient:
        raise BadRequest("--convert queues no training; leave --deepspeed and --accelerate out")
    if array.is_given:
        raise BadRequest("--convert queues one job; use --parts N instead of --array to divide it")
    if machine is not None:
        raise BadRequest(
            "--convert tries the conversion on this machine, but --host names another machine; "
            "run the command on that machine"
        )


def _members(
    job: Submission, sweep: Mapping[str, Sequence[Any]], count: int | None
) -> list[Submission]:
    """Return the members of an array as separate jobs if they may use object stores; else an empty
    list. Each member has its own prefix in a store, so its stores are checked separately.
    """
    if not _names_store(job.spec) and not {"resume_from", "checkpoint.upload_to"} & {*sweep}:
        return []
    members = members_of(given_of(job.spec), sweep, count)
    return [
        replace(job, spec=job_from_dict(dict(each.tree), source=job.source)) for each in members
    ]


def _names_store(spec: JobSpec) -> bool:
    return spec.checkpoint.upload_to is not None or in_store(spec.resume_from)


def _check_stores(jobs: Sequence[Submission], *, writes: bool) -> None:
    by_source: dict[str, list[JobSpec]] = {}
    for each in filter(lambda job: _names_store(job.spec), jobs):
        by_source.setdefault(each.source, []).append(each.spec)
    for source, specs in by_source.items():
        from zerotools.jobs.preflight.store_check import check_stores  # needed only here

        try:
            check_stores(specs, writes=writes)
        except BadRequest as error:
            raise BadRequest(f"{source}: {error}") from None


def _source(path: str) -> str:
    return "standard input" if path == "-" else path


def _job(
    name: str, configs: Configs, machine: RemoteMachine | None, slurm: SlurmOptions
) -> JobSpec:
    """Read the job in the file `name`. If the job runs on another machine, its paths belong to that
    machine, and must not be relative to a directory here.
    """
    if machine is None:
        return read_job(name, configs, slurm)
    job = read_job_file(name)
    job = replace(job, tree=slurm.applied(job.tree))
    if configs.any or look_up(job.tree, CONFIG) is not None:
        raise BadRequest(
            f"{name}: --host cannot send the config of another launcher; put the config into a "
            "new job file with zerotools import, and submit that file"
        )
    try:
        return job_from_tree(job.tree, source=job.source, base_dir=None, text=job.text)
    except BadRequest as error:
        if "must be an absolute path" not in str(error):
            raise
        raise BadRequest(f"{error} (with --host, the path is on {machine.host})") from None


def read_job(name: str, configs: Configs, slurm: SlurmOptions = NO_SLURM) -> JobSpec:
    """Read the job in the file `name`, and add the settings of `configs`.

    Raises:
        BadRequest, Unsupported: the job file or a config is wrong; the message names the file and
            the key.
    """
    job = read_job_file(name)
    job = replace(job, tree=slurm.applied(job.tree))
    config = look_up(job.tree, CONFIG)
    if configs.lenient and not configs.any and not isinstance(config, str):
        raise BadRequest(
            f"{name}: --lenient repairs a config file, but none was given; give --deepspeed or "
            "--accelerate"
        )
    if not configs.any and config is None:
        return job_from_tree(job.tree, source=job.source, base_dir=job.base_dir, text=job.text)
    imported = configs.imported(job)
    if imported.problem is not None:
        raise imported.problem
    assert imported.spec is not None
    return imported.spec


def _rehearse(client: DaemonClient, jobs: Sequence[Submission], as_json: bool, show: int) -> int:
    """Check the jobs without queueing them.

    The daemon checks files and the machine, as it does for a job that is submitted. It also builds
    each model without weights, as the ranks do. Without a daemon these checks are skipped.

    `show` is the number of training examples of each job to print. It is 0 or more; if it is not 0,
    a daemon is required.

    Raises:
        DaemonUnreachable: `show` is not 0, and no daemon answers.
    """
    samples: Sequence[dict[str, Any] | None] = ()
    try:
        samples = check_all(client, jobs, models=True, show=show)
    except DaemonUnreachable as error:
        if show:
            raise
        print_message("warning", f"the files of the job and the machine were not checked: {error}")
    if as_json:
        shown = {"samples": samples} if show else {}
        render.print_json(dry_run_json([each.spec for each in jobs]) | shown)
        return 0
    for each, sample in zip(jobs, samples, strict=False):
        render.print_lines(example_lines(each.source, sample))
    for each in jobs:
        spec = each.spec
        job = {
            "spec": job_to_dict(spec),
            "world_size": spec.world_size,
            "sizes": spec.sizes,
            "device": spec.device,
            "stage": spec.stage,
        }
        name = render.clean(spec.name) if spec.name else "the job"
        click.echo(f"{name} would be queued: {plan(job)}")
    return 0


def _queue(
    client: DaemonClient, jobs: Sequence[Submission], as_json: bool, key: str | None
) -> list[Job]:
    """Queue the jobs if all of them pass the checks, and report each.

    With JSON, all jobs are printed at the end, also if an error ends the queueing early.
    """
    # A check asks the job's interpreter, and returns its notes.
    asked = [job for job in jobs if _has_notes(job.spec)]
    if len(jobs) > 1 or asked:
        check_all(client, jobs)
    queued: list[Job] = []

    def report(job: Job) -> None:
        queued.append(job)
        if not as_json:
            said = [plan(job), *usual_start(job)]
            click.echo(f"{title(job)} is {how_it_waits(job)}: {'; '.join(said)}")

    try:
        return queue_all(client, jobs, report, key)
    finally:
        if as_json:
            render.print_json({"dry_run": False, "jobs": queued})


def _has_notes(spec: JobSpec) -> bool:
    """Return whether the daemon may have notes on the job. They are requested before the job is
    queued.
    """
    return reads_data(spec) or bool(spec.metrics.trackers) or _resumes_checkpoint(spec)


def _resumes_checkpoint(spec: JobSpec) -> bool:
    """Return whether the job resumes from a checkpoint that another program may have written. Such
    a checkpoint may lack facts, and the daemon has notes about this.
    """
    return spec.resume_from is not None and spec.engine != "script"


def _print_next_steps(job: Job) -> None:
    job_id = job["id"]
    if found := job.get("evaluated_by"):
        click.echo(f"  evaluation     job {found['job']} starts when this job has succeeded")
    click.echo(
        f"  see the queue  {command_name()} queue\n"
        f"  read its log   {command_name()} logs -f {job_id}"
    )
    click.echo(f"  stop it        {command_name()} cancel {job_id}")
