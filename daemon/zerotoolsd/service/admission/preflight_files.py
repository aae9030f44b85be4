"""Checks the files and programs that a job needs, before the job is accepted. So a mistake is
reported at submit and not an hour later.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.optional_packages import REQUIREMENTS, install_command
from zerotools.io.stores.parse_url import lies_in
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.jobfile_tables.check_store_urls import in_store
from zerotools.jobs.jobfile_tables.checkpoint import EXPORT
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.preflight.checkpoint_check import not_resumable
from zerotools.jobs.text.exec_limits import (
    LONGEST_STRING,
    stack_bytes_allowed,
    stack_bytes_needed,
    string_bytes,
)
from zerotools.ops.resume_from_other_program.foreign_run import is_foreign, was_made_elsewhere
from zerotools.runs import find_job_checkpoints
from zerotoolsd.attempts.job_environment import job_environment
from zerotoolsd.service.admission import (
    adoptable_process,
    checkpoints_and_conflicts,
    preflight_data,
    preflight_model,
)

_ADDED_PATH = 4096
"""Length of the longest path that the daemon may append to the PYTHONPATH of a job."""
_ADDED = 16 << 10
"""Bytes that the daemon, the supervisor and the launcher may add to the command and environment."""


def check_files(spec: JobSpec) -> None:
    """Check that every file that the job reads exists and passes a quick check.

    Raises BadRequest with the name of each file that fails.
    """
    problems = [*_missing(spec), *missing_requirements(spec)]
    if problems:
        raise BadRequest("; ".join(problems))


def _missing(spec: JobSpec) -> Iterator[str]:
    if spec.engine == "script":
        yield from _missing_of_script(spec)
        return
    yield from preflight_model.check_model(spec)
    yield from preflight_model.check_tokenizer(spec)
    if isinstance(spec.deepspeed.config, str):
        yield (
            f"deepspeed.config = {spec.deepspeed.config}: the queue takes no path, but the "
            'configuration itself with all "auto" values resolved; zerotools submit resolves them'
        )
    if (
        spec.resume_from is not None
        and not in_store(spec.resume_from)
        and not resumes_foreign_checkpoint(spec)
    ):
        path = Path(spec.resume_from)
        if not path.exists():
            yield f"resume_from = {path}: no such directory; name an existing checkpoint"
        else:
            yield from _unusable(spec, path)
    yield from preflight_data.check_data(spec)
    if spec.eval.task_dir is not None and not Path(spec.eval.task_dir).is_dir():
        yield f"eval.task_dir = {spec.eval.task_dir}: no such directory"


def _missing_of_script(spec: JobSpec) -> Iterator[str]:
    if (process := spec.script.process) is not None:
        yield from adoptable_process.why_not_adoptable(process)
        return
    script, first = spec.script, spec.script.command[0]
    directory = Path(script.directory)
    if not directory.is_dir():
        yield f"script.directory = {directory}: no such directory"
    elif not os.access(directory, os.X_OK):
        yield f"script.directory = {directory}: the job may not enter it (chmod or chown it)"
    elif first.endswith(".py") or "/" in first:
        if not (directory / first).is_file():
            yield f"script.command: the file {directory / first} does not exist"
    elif first != "-m" and shutil.which(first, path=job_environment(spec)["PATH"]) is None:
        yield f"script.command: the program {first} is not in PATH; give its full path"
    for key, path in (("resume_from", spec.resume_from), ("script.evaluates", script.evaluates)):
        if path is not None and not Path(path).exists():
            yield f"{key} = {path}: no such file or directory"


def resumes_foreign_checkpoint(spec: JobSpec) -> bool:
    """Return whether the job continues from a checkpoint of another program, judged from file
    names.

    The contents of such a checkpoint can only be checked with the model, as `run_rank_checks` does.
    """
    if spec.engine == "script" or spec.resume_from is None or in_store(spec.resume_from):
        return False
    return is_foreign(Path(spec.resume_from))


def began_in_another_program(spec: JobSpec) -> bool:
    """Return whether the job continues training that began in another program.

    The checkpoint was saved by another program (`resumes_foreign_checkpoint`), or was converted
    from such a checkpoint.
    """
    if resumes_foreign_checkpoint(spec):
        return True
    own = spec.engine != "script" and spec.resume_from is not None
    own = own and not in_store(spec.resume_from)
    return own and was_made_elsewhere(Path(spec.resume_from or ""))


def _unusable(spec: JobSpec, resume_from: Path) -> Iterator[str]:
    """Yield the reasons why the job cannot resume from checkpoint `resume_from`.

    Only file sizes are compared with the manifest here; the ranks compare digests.
    """
    try:
        choice = find_job_checkpoints.resolve_resume_from(resume_from, digests=False)
        if choice.record is not None and choice.path is not None:
            yield from not_resumable(spec, choice.record, choice.path)
            yield from _nothing_left(spec, choice.record.step, choice.path)
    except BadRequest as error:
        yield str(error)
    except BadFile as error:
        yield f"resume_from = {resume_from}: {error}; name another checkpoint"


def _nothing_left(spec: JobSpec, step: int, checkpoint: Path) -> Iterator[str]:
    """Yield an error if the job has no steps left after `step`, the step of the checkpoint.

    A job that continues in its own directory is accepted: it may still have to write its export.
    """
    steps, own = spec.train.steps, Path(spec.output_dir or "")
    if steps is None or step < steps or (spec.output_dir and _is_within(str(checkpoint), own)):
        return
    yield (
        f"train.steps = {steps}: counts from the beginning of the run, but resume_from = "
        f"{checkpoint} is already at step {step}; set a number above {step}"
    )


def check_output(spec: JobSpec) -> None:
    """Check that `output_dir` can be written and has no checkpoints of another job.

    Raises BadRequest.
    """
    if spec.output_dir is None:
        return
    output = Path(spec.output_dir)
    if output.exists() and not output.is_dir():
        raise BadRequest(f"output_dir = {output}: is not a directory; name another path")
    parent = next(p for p in (output, *output.parents) if p.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise BadRequest(
            f"output_dir = {output}: {parent} cannot be written; name another directory, or change "
            f"the rights of {parent}"
        )
    found = checkpoints_and_conflicts.newest_checkpoint(output) if spec.engine != "script" else None
    if found is None:
        _check_export(spec, output / EXPORT)
        return
    if _continues(spec, output):
        if not in_store(spec.resume_from):
            _check_is_newest(Path(spec.resume_from or ""), output)
        return
    raise BadRequest(
        f"output_dir = {output}: already holds checkpoints, the newest of step {found.step}; "
        f'name another directory, or resume from it with resume_from = "{output}"'
    )


def _continues(spec: JobSpec, output: Path) -> bool:
    """Return whether the job resumes from its own directory `output`, or from a copy of it in a
    store.

    The copies are checked when they are downloaded.
    """
    given, place = spec.resume_from, spec.checkpoint.upload_to
    if given is None:
        return False
    return _is_within(given, output) or (place is not None and lies_in(given, place))


def _check_export(spec: JobSpec, path: Path) -> None:
    """Raise BadRequest if the export directory `path` exists already. Only a resumed job may
    replace its own export.
    """
    if spec.checkpoint.export_on_finish is not None and os.path.lexists(path):
        raise BadRequest(
            f"checkpoint.export_on_finish = {format_value(spec.checkpoint.export_on_finish)}: "
            f"{path} already exists and would be replaced; move it away, or name another "
            "output_dir"
        )


def _is_within(path: str, directory: Path) -> bool:
    return Path(path).resolve().is_relative_to(directory.resolve())


def _check_is_newest(resume_from: Path, output: Path) -> None:
    """Raise BadRequest if `output` has a newer checkpoint than `resume_from`.

    The ranks would resume from the newer one.
    """
    given = find_job_checkpoints.resolve_resume_from(resume_from, digests=False).record
    newest = find_job_checkpoints.newest_valid(output, digests=False).record
    if given is not None and newest is not None and newest.step > given.step:
        raise BadRequest(
            f"resume_from = {resume_from}: is at step {given.step}, but output_dir = {output} "
            f"holds step {newest.step}, and the job would resume there; name another "
            f'output_dir to resume at step {given.step}, or set resume_from = "{output}" to '
            f"resume at step {newest.step}"
        )


COMPILERS = {"cpu": ("c++", "g++", "clang++"), "cuda": ("cc", "gcc", "clang")}
"""Compilers that torch.compile calls: C++ for code on CPUs, C for Triton's launchers on GPUs."""
CHOICE = {"cpu": "CXX", "cuda": "CC"}


def missing_requirements(
    spec: JobSpec, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield a sentence for each compiler or package that the job's `environment` lacks."""
    if spec.train.compile:
        yield from _compiler(spec, {**(environment or job_environment(spec)), **spec.env})
    if (spec.checkpoint.upload_to or in_store(spec.resume_from)) and not _reads_stores():
        key = "checkpoint.upload_to" if spec.checkpoint.upload_to else "resume_from"
        yield (
            f"{key}: is in an object store, and the daemon's Python has no obstore; run "
            f"{install_command(REQUIREMENTS['obstore'])}"
        )
    if spec.offload.path is not None:
        yield from _directory(Path(spec.offload.path))


def _reads_stores() -> bool:
    return importlib.util.find_spec("obstore") is not None


def _compiler(spec: JobSpec, environment: Mapping[str, str]) -> Iterator[str]:
    chosen = environment.get(CHOICE[spec.device])
    names = (chosen,) if chosen else COMPILERS[spec.device]
    if not any(shutil.which(name, path=environment.get("PATH")) for name in names):
        yield (
            f"train.compile = true: needs a compiler and PATH has none of {', '.join(names)}; "
            "install one, or remove this key"
        )


def _directory(path: Path) -> Iterator[str]:
    if path.exists() and not path.is_dir():
        yield f"offload.path = {path}: is not a directory; name another path"
        return
    parent = next(p for p in (path, *path.parents) if p.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        yield f"offload.path = {path}: {parent} cannot be written; name another directory"


def too_large(spec: JobSpec, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield an error with the actual and the allowed size, if the arguments of `spec` and the
    `environment` together are too large for the kernel.

    The kernel derives this limit from the stack limit of the daemon, which its jobs inherit.
    """
    own = () if spec.engine != "script" else (*spec.script.command, *spec.script.launcher_options)
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    room, taken = stack_bytes_allowed(stack), stack_bytes_needed(own, environment) + _ADDED
    if taken > room:
        yield (
            f"the job's arguments and environment (script.command, env, captured_env: "
            f"{len(own) + len(environment):,} in all) take {taken:,} bytes at the start of a "
            f"process, but the kernel accepts at most {room:,} here; write long values to a file "
            "and pass its path"
        )
    path = string_bytes(f"PYTHONPATH={environment.get('PYTHONPATH', '')}")
    if spec.engine == "script" and path + _ADDED_PATH > LONGEST_STRING:
        yield (
            f"PYTHONPATH has {path:,} bytes, and the daemon adds a path, but the kernel accepts at "
            f"most {LONGEST_STRING:,}; shorten it"
        )
