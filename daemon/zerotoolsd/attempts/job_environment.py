"""The environment of a job: the variables that were captured when the job was submitted, and no
variables of the daemon.

A daemon is started by a login shell, a unit or a container. The daemon's variables may contain
secrets (of a cloud, a registry) and settings (a proxy, a CUDA version) that the authors of jobs do
not know.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.text.mask_secrets import (
    Steps,
    named_secret_steps,
    result_of,
    secret_argument_steps,
)
from zerotoolsd.users.account import NAME_SERVICE, UnknownAccount
from zerotoolsd.users.start_as_submitter import USUAL_PATH, JobUser

NOT_CAPTURED = (
    "only PATH, HOME, LANG and the variables of [env], because no environment was captured at "
    "submit"
)
LEAST_UNSHOWN = 6
"""Values of `[env]` with at least this many characters are hidden in reasons."""


def least_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the few environment variables that every process needs. A job without an environment
    captured at submit gets only these and `[env]`.
    """
    return {
        "PATH": environment.get("PATH") or USUAL_PATH,
        "HOME": _home() or environment.get("HOME") or "/",
        "LANG": environment.get("LANG") or "C.UTF-8",
    }


def _home() -> str | None:
    try:
        return NAME_SERVICE.find(os.geteuid()).home
    except UnknownAccount:  # a uid without an entry, as containers have
        return None


def job_environment(spec: JobSpec, user: JobUser | None = None) -> dict[str, str]:
    """Return the environment of a job's processes: a few basic variables, then the variables that
    were captured at submit, then the variables in `[env]`. Later variables replace earlier ones.

    `user` is the user of the processes; None: the user of the daemon.
    """
    least = least_environment() if user is None else {**_language(), **user.least}
    return {**least, **(spec.captured_env or {}), **spec.env}


def _language(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    return {"LANG": environment.get("LANG") or "C.UTF-8"}


def secrets_of(spec: JobSpec | None) -> list[str]:
    """Return the secret values in the job file. No text about the job may contain them."""
    return [] if spec is None else result_of(secret_steps(spec))


def secret_steps(spec: JobSpec) -> Steps[list[str]]:
    """Return the same values as `secrets_of`. This is a generator that works in short steps."""
    found = yield from named_secret_steps(spec.env)
    return found + (yield from secret_argument_steps(spec.script.command))


def unshown_values(spec: JobSpec | None) -> list[str]:
    """Return the values that the reason of a job must not contain: secrets, and long values of
    `[env]`.

    Short values are allowed, because they may be parts of ordinary words.
    """
    return [] if spec is None else [*secrets_of(spec), *long_values(spec)]


def long_values(spec: JobSpec) -> list[str]:
    """Return the values of `[env]` that are too long to be parts of ordinary words."""
    return [value for value in spec.env.values() if len(value) >= LEAST_UNSHOWN]
