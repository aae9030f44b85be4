"""Checks that a job's interpreter has the packages for training, without importing them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from tempfile import NamedTemporaryFile
from typing import IO, Any

from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import EXTRAS, distribution_of, install_command, is_older
from zerotools.jobs.jobfile.derive_evaluation_job import HARNESS
from zerotools.jobs.jobfile_tables.complete_deepspeed_config import completed_config
from zerotools.jobs.jobfile_tables.deepspeed import on_nvme
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.preflight import (
    accelerate_config,
    async_io,
    deepspeed_config_check,
    evaluation_task_check,
)
from zerotools.jobs.submit_timeout import DEEPSPEED_SECONDS, INTERPRETER_SECONDS
from zerotoolsd.service.admission.preflight_data import needs_pyarrow
from zerotoolsd.users.open_as_user import rights_of
from zerotoolsd.users.start_as_submitter import JobUser, given_env

LONGEST_ANSWER = 1 << 16
KILL_SECONDS = 2.0
"""Seconds that the daemon waits for a child process to end after SIGKILL."""
_FAILED = b"zerotools cannot execute it: "
_EXECUTE = (
    "import os, sys\n"
    "try:\n"
    "    os.execvp(sys.argv[1], sys.argv[1:])\n"
    "except OSError as error:\n"
    "    os.write(1, b'%s' + str(error.errno).encode())"
)
"""Program of the child, which executes the user's interpreter.

Executing a file of a user may never return, and the forking process waits for that. So asyncio
starts the daemon's own interpreter, and that one executes the user's.
"""


@dataclass(frozen=True)
class Needs:
    """The requirements for the interpreter of a job.

    Attributes:
        packages: name of each module -> the argument of pip that installs it.
        version: the lowest Python version.
        async_io: whether DeepSpeed's `async_io` operator, or the tools that compile it, must exist.
        configuration: the configuration that DeepSpeed must accept, for `world_size` ranks on
            `device`.
        tasks: the tasks that lm-evaluation-harness must know. `task_dir` is a directory with more
            tasks.
        launched: options of accelerate and a directory. Started with them, accelerate must train on
            the job's GPUs.
    """

    packages: Mapping[str, str]
    version: tuple[int, int]
    async_io: bool = False
    configuration: Mapping[str, Any] | None = None
    world_size: int = 1
    device: str = "cpu"
    tasks: tuple[str, ...] = ()
    task_dir: str | None = None
    launched: Mapping[str, Any] | None = None


TRAINER = Needs(EXTRAS["train"], (3, 11))
DEEPSPEED = Needs({**TRAINER.packages, **EXTRAS["deepspeed"]}, TRAINER.version)
LAUNCHERS = {
    "torchrun": Needs({"torch": "torch"}, (3, 9)),
    "accelerate": Needs({"accelerate": "accelerate"}, (3, 9)),
    "deepspeed": Needs({"deepspeed": "deepspeed"}, (3, 9)),
}
_PROGRAM = """
import sys, json, importlib.util as u
def version(name):
    try:
        from importlib.metadata import version
        return version(name)
    except Exception:  # not installed, or its metadata is damaged: the version is not compared
        return None
asked = [each.split("=") for each in sys.argv[1:]]
missing = [module for module, _ in asked if not u.find_spec(module)]
print(json.dumps([sys.version_info[:2], missing, {m: version(name) for m, name in asked}]))
"""


def needs_of(spec: JobSpec) -> Needs | None:
    """Return what job `spec` needs of its interpreter; None if the job may run any program."""
    if spec.engine == "script":
        if spec.script.command[:2] == HARNESS:
            return Needs(EXTRAS["evals"], TRAINER.version)
        launched = LAUNCHERS.get(spec.script.launcher)
        if launched is None or spec.script.launcher != "accelerate" or spec.device == "cpu":
            return launched
        options, place = list(spec.script.launcher_options), spec.script.directory
        asked = {"options": options, "directory": place, "gpus": spec.all_ranks}
        return replace(launched, launched=asked)
    needs = TRAINER
    if spec.engine == "deepspeed":
        needs = replace(
            DEEPSPEED,
            async_io=on_nvme(spec.deepspeed.tree),
            configuration=completed_config(spec),
            world_size=spec.all_ranks,
            device=spec.device,
        )
    packages = dict(needs.packages)
    if needs_pyarrow(spec):
        packages |= EXTRAS["data"]
    if spec.lora.rank is not None:
        packages |= EXTRAS["lora"]
    if spec.lora.packs_frozen:
        packages |= EXTRAS["qlora"]
    if spec.eval.predict_with_generate:
        packages |= EXTRAS["scores"]
    packages |= {name: EXTRAS["trackers"][name] for name in spec.metrics.trackers}
    if spec.eval.tasks:
        packages |= EXTRAS["evals"]
        needs = replace(needs, tasks=spec.eval.tasks, task_dir=spec.eval.task_dir)
    return replace(needs, packages=packages)


def needs_from(tree: Mapping[str, Any]) -> Needs:
    """Return the `Needs` with the fields in the JSON object `tree`."""
    lists = {name: tuple(tree[name]) for name in ("version", "tasks")}
    return Needs(**{**tree, **lists})


async def check_interpreter(
    python: str, env: Mapping[str, str], needs: Needs = TRAINER, user: JobUser | None = None
) -> None:
    """Raise BadRequest if the interpreter `python` does not meet some of the requirements `needs`.
    The error lists these requirements.

    The check runs in a child process with the environment `env`, as `user`.
    """
    asked = [f"{module}={distribution_of(need)}" for module, need in needs.packages.items()]
    output = await run_interpreter(python, env, "-c", _PROGRAM, *asked, user=user)
    try:
        version, missing, installed = json.loads(output)
        old = tuple(version) < needs.version
    except (ValueError, TypeError):
        raise BadRequest(
            f"python = {python}: is not a Python interpreter; name one, such as VENV/bin/python"
        ) from None
    if old:
        least = ".".join(map(str, needs.version))
        raise BadRequest(
            f"python = {python}: is Python {version[0]}.{version[1]}; a job needs {least} or newer"
        )
    if missing:
        command = install_command(*(needs.packages[name] for name in missing), python=python)
        raise BadRequest(f"python = {python}: has no {' and no '.join(missing)}; run {command}")
    for module, requirement in needs.packages.items():
        if is_older(found := installed.get(module), requirement):
            command = install_command(requirement, python=python)
            raise BadRequest(
                f"python = {python}: has {module} {found}; a job needs {requirement}; run {command}"
            )
    if needs.tasks and (unknown := await _unknown_tasks(python, env, needs, user)):
        raise BadRequest(evaluation_task_check.unknown_tasks_refusal(unknown))
    if needs.async_io and (why := await _without_async_io(python, env, needs.device, user)):
        raise BadRequest(f"python = {python}: {async_io.async_io_refusal(why)}")
    if needs.launched is not None and (why := await _misses_gpus(python, env, needs, user)):
        raise BadRequest(why)
    if needs.configuration is not None and (why := await _refused(python, env, needs, user)):
        raise BadRequest(f"deepspeed.config: the DeepSpeed of {python} does not accept it: {why}")


async def _refused(
    python: str, env: Mapping[str, str], needs: Needs, user: JobUser | None
) -> str | None:
    """Return the error with which DeepSpeed refuses the configuration; None if DeepSpeed accepts
    it.

    Also return None if DeepSpeed takes too long or cannot be imported, because the ranks check the
    configuration again.
    """
    with ExitStack() as stack:
        with rights_of(user):
            asked = stack.enter_context(NamedTemporaryFile("w", encoding="utf-8", suffix=".json"))
        question = {"world_size": needs.world_size, "device": needs.device}
        json.dump({"config": needs.configuration, **question}, asked)
        asked.flush()
        try:
            output = await run_interpreter(
                *(python, env, "-P", deepspeed_config_check.__file__, asked.name),
                deadline_seconds=DEEPSPEED_SECONDS,
                user=user,
            )
            why = json.loads(output.decode("utf-8", "replace").rstrip().rsplit("\n", 1)[-1])
        except (BadRequest, ValueError):
            return None
    return why if isinstance(why, str) else None


async def _unknown_tasks(
    python: str, env: Mapping[str, str], needs: Needs, user: JobUser | None
) -> dict[str, list[str]]:
    """Return the tasks that lm-evaluation-harness does not know, each with the most similar known
    names.

    The result is empty if the harness does not answer in time, for example on a slow file system.
    In this case the evaluation job itself checks the tasks.
    """
    arguments = ("-P", evaluation_task_check.__file__, needs.task_dir or "", *needs.tasks)
    try:
        return dict(json.loads(await run_interpreter(python, env, *arguments, user=user)))
    except (BadRequest, ValueError, TypeError):
        return {}


async def _misses_gpus(
    python: str, env: Mapping[str, str], needs: Needs, user: JobUser | None
) -> str | None:
    """Return the reason why accelerate would not train on the GPUs of the job.

    Return None if accelerate would, or if it does not answer in time.
    """
    arguments = ("-P", accelerate_config.__file__, json.dumps(needs.launched))
    try:
        why = json.loads(await run_interpreter(python, env, *arguments, user=user))
    except (BadRequest, ValueError):
        return None
    return why if isinstance(why, str) else None


async def _without_async_io(
    python: str, env: Mapping[str, str], device: str, user: JobUser | None
) -> str | None:
    output = await run_interpreter(python, env, "-P", async_io.__file__, device, user=user)
    try:
        return None if (why := json.loads(output)) is None else str(why)
    except ValueError:  # such as a full disk for the test; the ranks check again
        return None


async def run_interpreter(
    python: str,
    env: Mapping[str, str],
    *arguments: str,
    deadline_seconds: float = INTERPRETER_SECONDS,
    user: JobUser | None = None,
) -> bytes:
    """Run the interpreter `python` with `arguments` and environment `env`. Return its output.

    The interpreter runs as `user` (None: as the daemon). Raises BadRequest if it cannot be started,
    or does not end within `deadline_seconds`.
    """
    command = (sys.executable, "-I", "-S", "-c", _EXECUTE % _FAILED.decode(), python, *arguments)
    if user is not None:
        command, env = user.command(command, given=True), given_env(env)
    # Not asyncio's own pipe, which cannot be closed while another process still writes into it.
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as answer:
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=asyncio.subprocess.DEVNULL,
                cwd="/",
                env=dict(env),
            )
        except OSError as error:
            raise BadRequest(f"python = {python}: cannot be started: {error.strerror}") from None
        finally:
            os.close(writing)
        try:
            said = await asyncio.wait_for(_answer(child, answer), deadline_seconds)
        except TimeoutError:
            raise BadRequest(
                f"python = {python}: did not answer within {deadline_seconds:g} s; submit the job "
                "again, or install that Python on a faster disk"
            ) from None
        finally:
            # Killing a process that has just ended would take its status from the event loop.
            if child.returncode is None:
                with suppress(ProcessLookupError):
                    child.kill()
                with suppress(TimeoutError):
                    await asyncio.wait_for(child.wait(), KILL_SECONDS)
    if said.startswith(_FAILED):
        why = os.strerror(int(said.removeprefix(_FAILED)))
        raise BadRequest(f"python = {python}: cannot be started: {why}")
    return said


async def _answer(child: asyncio.subprocess.Process, pipe: IO[bytes]) -> bytes:
    output = await _beginning(pipe)
    if len(output) < LONGEST_ANSWER:
        await child.wait()
    return output


async def _beginning(pipe: IO[bytes]) -> bytes:
    """Return the first LONGEST_ANSWER bytes from the pipe. A valid output is shorter."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        output = b""
        while len(output) < LONGEST_ANSWER and (part := await reader.read(LONGEST_ANSWER)):
            output += part
        return output
    finally:
        transport.close()
