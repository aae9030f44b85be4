"""Run Slurm's programs (squeue, sacct, sbatch, scancel, scontrol), and parse their output.

Errors are of two kinds. If the controller does not answer (because it is down, restarting or busy),
the state of a job is unknown. If the controller refuses a request, the error has its text.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest, SlurmUnreachable, Unsupported

SECONDS = 45.0
"""The time limit of a Slurm program in seconds.

It is longer than the time after which Slurm's programs give up (MessageTimeout, 10 s by default).
"""
_LEAST = (20, 11)
_FILTERS_JSON = (23, 2)
"""The first Slurm version in which `squeue --json` obeys the option --jobs.

Older versions list every job of the cluster.
"""
_SILENT = re.compile(
    r"unable to contact slurm controller|connection refused|connection timed out|"
    r"socket timed out|zero bytes were transmitted|communication connection failure|"
    r"slurm backup controller in standby|controller not responding|connection reset|"
    r"slurm_persist_conn_open|resource temporarily unavailable|unable to resolve|"
    r"try again later|slurm_load_jobs error: transport|configuration source",
    re.IGNORECASE,
)
_MOST_NUMBERS = 8_000
"""The largest number of jobs in one request. Linux limits an argument to 128 KiB."""
_UNKNOWN_JOB = re.compile(r"invalid job id", re.IGNORECASE)
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")


_NEVER = frozenset({"SBATCH_ARRAY_INX", "SBATCH_CLUSTERS", "SBATCH_WAIT"})
"""Environment variables of sbatch that are removed. zerotools submits one job, to the same
cluster that its other Slurm programs use, and does not wait for the job's end.
"""
_OTHER_NAMES = {
    "JOB_NAME": ("SBATCH_JOB_NAME",),
    "MEM": ("SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU", "SBATCH_MEM_PER_NODE"),
    "TIME": ("SBATCH_TIMELIMIT",),
    "GRES": ("SBATCH_GPUS", "SBATCH_GPUS_PER_NODE", "SBATCH_GPUS_PER_TASK"),
}
SQUEUE_FORMAT = "%A\t%T\t%r\t%k\t%D\t%N\t%j"
PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "SPECIAL_EXIT"})
GOING = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"}
    | {"RESIZING", "EXPEDITING", "POWER_UP_NODE"}
)
HELD_AGAIN = frozenset({"REQUEUE_HOLD", "RESV_DEL_HOLD"})


class SlurmCommands:
    """Runs Slurm's programs, which are searched in the PATH of `environment`."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        # Without variables of a surrounding job: sbatch would use them as options of the new job.
        self.environment = {
            name: value
            for name, value in environment.items()
            if name in _KEPT or not name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_"))
        }
        self._given = environment
        self._version: tuple[int, int] | None = None

    def path_of(self, program: str) -> str:
        """Return the path of the Slurm program `program`.

        Raises Unsupported: the program is not installed.
        """
        place = shutil.which(program, path=self.environment.get("PATH"))
        if place is None:
            raise Unsupported(
                f"{program} is not in PATH: Slurm's programs are needed to queue jobs on its "
                "cluster; log in to a machine of the cluster that has them"
            )
        return place

    def _refuse_lost_config(self, program: str) -> None:
        """Raise an error if Slurm's config file is missing.

        Without this check, Slurm's programs would search for the file for a minute.
        """
        config = self.environment.get("SLURM_CONF")
        if config and not Path(config).exists():
            raise SlurmUnreachable(
                f"{program} cannot ask Slurm's controller: the file SLURM_CONF={config} does "
                "not exist; correct the variable, or unset it"
            )

    def version(self) -> tuple[int, int]:
        """Return Slurm's version as two numbers, such as (22, 5).

        Raises Unsupported: the version is too old, or the program is not Slurm's.
        """
        if self._version is None:
            said = self._run("sbatch", ["--version"]).strip()
            found = re.search(r"(\d+)\.(\d+)", said)
            if found is None:
                raise Unsupported(
                    f"sbatch --version prints {said[:100]!r}, not a version of Slurm; correct "
                    "PATH, so that sbatch is Slurm's"
                )
            self._version = int(found[1]), int(found[2])
        if self._version < _LEAST:
            year, month = self._version
            raise Unsupported(
                f"Slurm {year}.{month:02} is too old: zerotools needs "
                f"{_LEAST[0]}.{_LEAST[1]:02} or newer"
            )
        return self._version

    def submit(self, script: str, options: Sequence[str] = ()) -> str:
        """Submit the batch script `script` by sbatch with the options `options`.

        Return the number that Slurm gave to the job, as text.

        Raises:
            BadRequest: Slurm refuses the job; the error has Slurm's text.
            SlurmUnreachable: it is unknown whether Slurm accepted the job.
        """
        own = {name for line in script.splitlines() for name in _option_names(line)}
        defaults = {
            name: value
            for name, value in self._given.items()
            if name.startswith("SBATCH_") and name not in own and name not in _NEVER
        }
        answer = self._run(
            "sbatch", ["--parsable", *options], given=script, more=defaults, seconds=2 * SECONDS
        )
        lines = answer.split()
        number = lines[-1].partition(";")[0] if lines else ""
        if not number.isdecimal():
            raise SlurmUnreachable(
                f"sbatch did not print the number of the job that it queued: {answer[:200]!r}; "
                "check with squeue whether the job is queued"
            )
        return number

    def jobs(self, numbers: Sequence[str]) -> dict[str, ControllerJob]:
        """Return the jobs in `numbers` that the controller still knows, keyed by number. Raises
        SlurmUnreachable.
        """
        wanted, known = set(numbers), dict[str, ControllerJob]()
        for first in range(0, len(numbers), _MOST_NUMBERS):
            chosen = f"--jobs={','.join(numbers[first : first + _MOST_NUMBERS])}"
            try:
                found = self._listed([chosen, "--states=all"])
            except BadRequest as error:  # for Slurm, a single unknown number is an error
                if _UNKNOWN_JOB.search(str(error)):
                    continue
                raise
            known |= {each.number: each for each in found if each.number in wanted}
        return known

    def own_jobs(self) -> list[ControllerJob]:
        """Return all jobs of this user that the controller still knows. Raises SlurmUnreachable."""
        return self._listed([f"--user={os.getuid()}", "--states=all"])

    def _listed(self, chosen: Sequence[str]) -> list[ControllerJob]:
        if self.version() >= _FILTERS_JSON:
            try:
                return jobs_of_json(self._run("squeue", ["--json", *chosen]))
            except (ValueError, BadRequest):  # Slurm without JSON, or in an unknown form
                pass
        return jobs_of_text(self._run("squeue", ["--noheader", *chosen, f"-o{SQUEUE_FORMAT}"]))

    def accounted(self, number: str) -> ControllerJob | None:
        """Return the record of the job `number` in Slurm's accounting database; None if the cluster
        has no such database, or if it has no record of the job.
        """
        asked = [
            "-X",
            "-n",
            "-P",
            "-D",
            "-j",
            number,
            "-o",
            "JobIDRaw,State,ExitCode,NodeList,JobName",
        ]
        try:
            found = jobs_of_sacct(self._run("sacct", asked))
        except (Unsupported, BadRequest, SlurmUnreachable):
            return None
        return next((each for each in reversed(found) if each.number == number), None)

    def described(self, number: str) -> ControllerJob | None:
        """Return the job `number` as `scontrol show job` reports it; None if Slurm does not
        know the job. Raises SlurmUnreachable.
        """
        try:
            return job_of_scontrol(self._run("scontrol", ["--oneliner", "show", "job", number]))
        except BadRequest as error:
            if _UNKNOWN_JOB.search(str(error)):
                return None
            raise

    def cancel(self, number: str) -> None:
        """End the job `number`: Slurm sends SIGTERM to a running job, and later SIGKILL.

        If the job has finished, nothing happens.

        Raises BadRequest and SlurmUnreachable.
        """
        self._unless_unknown("scancel", [number])

    def send_signal(self, number: str, signal: str) -> None:
        """Send the signal `signal` to the batch script of a running job.

        Raises the same errors as `cancel`.
        """
        self._unless_unknown("scancel", ["--batch", f"--signal={signal}", number])

    def _unless_unknown(self, program: str, arguments: Sequence[str]) -> None:
        try:
            self._run(program, arguments)
        except BadRequest as error:
            if not re.search(r"invalid job id|already completing|completed", str(error), re.I):
                raise

    def requeue(self, number: str) -> None:
        """End a running job and put it into Slurm's queue again.

        Raises BadRequest if Slurm refuses, and SlurmUnreachable.
        """
        self._run("scontrol", ["requeue", number])

    def begin_now(self, number: str) -> None:
        """Let a requeued job start at once: remove the delay of two minutes that Slurm adds.

        Raises the same errors as `requeue`.
        """
        self._run("scontrol", ["update", f"JobId={number}", "StartTime=now"])

    def node_address(self, node: str) -> str:
        """Return the address at which other nodes reach the node `node`; the node's name if
        Slurm does not know an address.
        """
        try:
            said = self._run("scontrol", ["--oneliner", "show", "node", node])
        except (BadRequest, SlurmUnreachable, Unsupported):
            return node
        found = re.search(r"\bNodeAddr=(\S+)", said)
        return found[1] if found else node

    def test_only(self, script: str) -> str:
        """Return the output of `sbatch --test-only`, which contains the expected start time.

        Raises BadRequest.
        """
        return self._run("sbatch", ["--test-only"], given=script, stderr_too=True).strip()

    def _run(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        given: str | None = None,
        more: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
        stderr_too: bool = False,
    ) -> str:
        place = self.path_of(program)
        self._refuse_lost_config(program)
        try:
            done = subprocess.run(
                [place, *arguments],
                env={**self.environment, **(more or {})},
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            given_up = error.stderr or ""  # bytes in text mode, too
            if isinstance(given_up, bytes):
                given_up = given_up.decode(errors="replace")
            waiting = _error_messages(given_up)
            raise SlurmUnreachable(
                f"{program} had no answer from Slurm's controller in {seconds:.0f} s"
                + (f": {waiting}" if waiting else "")
            ) from None
        except OSError as error:
            raise Unsupported(f"{place} cannot be started: {error.strerror}") from None
        said = _error_messages(done.stderr)
        if done.returncode == 0 and not (not done.stdout.strip() and _SILENT.search(said)):
            return f"{done.stdout}{done.stderr}" if stderr_too else done.stdout
        if done.returncode < 0:
            raise SlurmUnreachable(f"{program} was ended by signal {-done.returncode}")
        if _SILENT.search(said):
            raise SlurmUnreachable(f"Slurm's controller does not answer {program}: {said}")
        raise BadRequest(f"{program}: {said or f'exit status {done.returncode}'}")


def _error_messages(stderr: str) -> str:
    """Return the error messages in the output `stderr` of a Slurm program, without the prefix
    of each line.
    """
    lines = [re.sub(r"^\w+: (error: )?", "", line.strip()) for line in stderr.splitlines()]
    kept = [line for line in lines if line and "PMIx" not in line]
    return "; ".join(dict.fromkeys(kept))[:500]


def _option_names(line: str) -> list[str]:
    """Return the names of sbatch's environment variables that would override the options on one
    line of a batch script.
    """
    found = re.match(r"#SBATCH --(no-)?([\w-]+)", line)
    if found is None:
        return []
    name = found[2].upper().replace("-", "_")
    return [f"SBATCH_{name}", f"SBATCH_NO_{name}", *_OTHER_NAMES.get(name, ())]


@dataclass(frozen=True, kw_only=True)
class ControllerJob:
    """A job as Slurm's controller reports it.

    `state` is one of Slurm's base states, and `completing` is true while the job is ending.
    `reason` says why the job waits, and `comment` is the text that was given at its submission.
    """

    number: str
    state: str
    completing: bool = False
    reason: str = ""
    comment: str = ""
    nodes: int | None = None
    node_list: str = ""
    name: str = ""
    preempted: bool = False

    @property
    def waits(self) -> bool:
        """True if the job has not started yet and is expected to start."""
        return self.state in PENDING or self.state in HELD_AGAIN

    @property
    def runs(self) -> bool:
        """True if the job runs or is ending."""
        return self.state in GOING or self.completing

    @property
    def is_over(self) -> bool:
        """True if the job will not run any more."""
        return not self.waits and not self.runs


def jobs_of_text(text: str) -> list[ControllerJob]:
    """Parse the output of squeue in the format `SQUEUE_FORMAT`, one job per line."""
    found = []
    for line in text.splitlines():
        parts = line.split("\t", 6)
        if len(parts) < 7 or not parts[0].isdecimal():
            continue
        number, state, reason, comment, nodes, node_list, name = parts
        found.append(
            ControllerJob(
                number=number,
                state=state,
                completing=state == "COMPLETING",
                reason=_text(reason),
                comment=_text(comment),
                nodes=int(nodes) if nodes.isdecimal() else None,
                node_list=_text(node_list),
                name=name,
            )
        )
    return found


def jobs_of_json(text: str) -> list[ControllerJob]:
    """Parse the output of `squeue --json` of any Slurm version.

    Raises ValueError if the text is not such an output.
    """
    tree = json.loads(text)
    jobs = tree.get("jobs") if isinstance(tree, dict) else None
    if not isinstance(jobs, list):
        raise ValueError("it has no jobs")
    return [found for each in jobs if (found := _of_json(each)) is not None]


def _of_json(tree: Any) -> ControllerJob | None:
    number = _number(tree.get("job_id")) if isinstance(tree, dict) else None
    if number is None:
        return None
    states = list(_split_list(tree.get("job_state")))
    flags = {"COMPLETING", "CONFIGURING", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE"}
    base = [each for each in states if each not in flags and each not in HELD_AGAIN]
    held = [each for each in states if each in HELD_AGAIN]
    return ControllerJob(
        number=str(number),
        state=(held or base or states or ["UNKNOWN"])[0],
        completing="COMPLETING" in states,
        reason=_text(tree.get("state_reason")),
        comment=_text(tree.get("comment")),
        nodes=_number(tree.get("node_count")),
        node_list=_text(tree.get("nodes")),
        name=_text(tree.get("name")),
    )


def jobs_of_sacct(text: str) -> list[ControllerJob]:
    """Parse the output of `sacct -X -n -P -o JobIDRaw,State,ExitCode,NodeList,JobName`, one job
    per line.
    """
    found = []
    for line in text.splitlines():
        parts = line.split("|", 4)
        if len(parts) >= 4 and parts[0].isdecimal() and parts[1]:
            state, _, who = parts[1].partition(" ")  # CANCELLED by 1000
            found.append(
                ControllerJob(
                    number=parts[0],
                    state=state,
                    reason=who,
                    node_list=_text(parts[3]),
                    name=parts[4] if len(parts) > 4 else "",
                )
            )
    return found


def job_of_scontrol(text: str) -> ControllerJob | None:
    """Parse the output of `scontrol --oneliner show job`. Return None if the output has no job."""
    found = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text))
    if not found.get("JobId", "").isdecimal():
        return None
    state = found.get("JobState", "UNKNOWN")
    nodes = found.get("NumNodes", "").partition("-")[0]
    return ControllerJob(
        number=found["JobId"],
        state=state,
        completing=state == "COMPLETING",
        reason=_text(found.get("Reason")),
        comment=_text(found.get("Comment")),
        nodes=int(nodes) if nodes.isdecimal() else None,
        node_list=_text(found.get("NodeList")),
        name=found.get("JobName", ""),
        preempted=found.get("PreemptTime", "None") not in ("None", ""),
    )


def _split_list(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from value.split(",")
    elif isinstance(value, list):
        yield from (each for each in value if isinstance(each, str))


def _number(value: Any) -> int | None:
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) else None
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if type(value) is int else None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return "" if text in ("(null)", "None", "N/A", "None assigned") else text
