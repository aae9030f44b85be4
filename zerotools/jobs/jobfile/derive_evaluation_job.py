"""Make a job that evaluates the model of a finished job on tasks of lm-evaluation-harness.

The new job runs the program `zerotools.integrations.evaluation_harness`. The daemon exports the
model of the job that `script.evaluates` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zerotools.jobs.jobfile.parse import given_of, job_from_dict
from zerotools.jobs.jobfile_tables.eval import EvalSpec
from zerotools.jobs.jobfile_tables.spec import JobSpec

HARNESS = ("-m", "zerotools.integrations.evaluation_harness")
"""The first words of the evaluation job's `script.command`."""
_LONGEST_NAME = 200
_ENDING = "-eval"
_SAME = ("python", "device", "numa", "env", "captured_env", "limits", "notify")
"""Keys and tables that are copied from the evaluated job to the evaluation job."""


def is_evaluated(spec: JobSpec) -> bool:
    """Return whether the daemon queues an evaluation job after this job.

    For a job on several nodes, only the daemon of node 0 does so.
    """
    return bool(spec.eval.tasks) and spec.rendezvous.node_rank == 0


def count_jobs(specs: Iterable[JobSpec]) -> int:
    """Return the number of jobs that the daemon queues for `specs`, including their evaluation
    jobs."""
    return sum(1 + is_evaluated(spec) for spec in specs)


def evaluation_name(name: str) -> str:
    """Return the name of the job that evaluates the job `name`."""
    return f"{name[: _LONGEST_NAME - len(_ENDING)]}{_ENDING}"


def evaluation_job(spec: JobSpec, output_dir: str, name: str) -> JobSpec:
    """Return the evaluation job for the job `spec`, which has its output in `output_dir`.

    The new job has the name `name`, and runs on one GPU, or in one process on CPUs.
    """
    given = given_of(spec)
    tree: dict[str, Any] = {each: given[each] for each in _SAME if each in given}
    if isinstance(spec.gpus, tuple):
        tree["gpus"] = list(spec.gpus[:1])
    files = given.get("metrics", {})
    tree |= {
        "name": name,
        "engine": "script",
        "metrics": {each: files[each] for each in ("jsonl", "tensorboard") if each in files},
        "script": {
            "command": [*HARNESS, *_options(spec.eval, spec.device)],
            "directory": "/",
            "evaluates": output_dir,
        },
    }
    return job_from_dict(tree, source="eval.tasks")


def _options(spec: EvalSpec, device: str) -> list[str]:
    """Return the command-line options of the evaluation program, which has the same options as
    `lm_eval`.
    """
    options: Mapping[str, object] = {
        "--tasks": ",".join(spec.tasks),
        "--include_path": spec.task_dir,
        "--num_fewshot": spec.few_shot,
        "--limit": None if spec.limit is None else str(spec.limit).removesuffix(".0"),
        "--batch_size": spec.batch_size,
        "--device": "cpu" if device == "cpu" else None,
    }
    given = ((name, value) for name, value in options.items() if value is not None)
    return [word for name, value in given for word in (name, str(value))]
