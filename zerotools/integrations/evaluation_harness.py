"""Evaluates the model of a job with lm-evaluation-harness, and reports the scores.

The daemon runs it in a job with `script.evaluates`, as `python -m
zerotools.integrations.evaluation_harness --tasks hellaswag,arc_easy`. `ZEROTOOLS_MODEL` names the
directory of the model. The options have the same names, defaults and meanings as the options of
`lm_eval`. The file `results.json` in the job's `output_dir` gets all results of the harness. The
scores of the requested tasks are reported as an evaluation after the step of the checkpoint.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerotools import worker

Report = Callable[..., object]
"""A function that is called with the step, and with the scores as keywords."""
RESULTS = "results.json"
_EVALUATED = "evaluated.json"
_OF_SEVERAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
"""Environment variables that make the harness wait for other ranks. A single process removes
them.
"""
_MOST_BYTES = 3000
"""The largest size in bytes of the reported scores. A message has at most 4,096 bytes."""


def scores_of(results: Mapping[str, Any], named: Collection[str] = ()) -> dict[str, float]:
    """Return the scores keyed by name, such as `hellaswag/acc_norm`.

    If the results have scores of a group of tasks, the scores of single tasks in the group are left
    out, except of tasks in `named`. If a filter was applied to the answers, the name of the score
    includes the filter: `gsm8k/exact_match,strict-match`. Standard errors are left out.
    """
    inside = set[str]()
    for group, members in (results.get("group_subtasks") or {}).items():
        if any(_scores(group, results["results"].get(group, {}))):
            inside.update(members)
    found = dict[str, float]()
    for task, values in results["results"].items():
        if task not in inside or task in named:
            found.update(_scores(task, values))
    return found


def _scores(task: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        metric, comma, made_by = key.partition(",")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if comma and not metric.endswith("_stderr") and is_number and math.isfinite(value):
            shown = metric if made_by == "none" else key
            yield f"{task}/{shown}", float(value)


def evaluate(options: argparse.Namespace, model: str) -> dict[str, Any] | None:
    """Run the harness on the model in the directory `model`, and return its results; None on ranks
    other than 0.
    """
    from lm_eval.evaluator import simple_evaluate

    wanted, tasks = _tasks(options)
    found: dict[str, Any] | None = simple_evaluate(
        model="hf",
        model_args={"pretrained": model},
        tasks=wanted,
        num_fewshot=options.num_fewshot,
        limit=options.limit,
        batch_size=options.batch_size,
        device=options.device,
        task_manager=tasks,
        log_samples=False,
    )
    return found


def _tasks(options: argparse.Namespace) -> tuple[list[str], Any]:
    """Return the names of the tasks that match the requested names or patterns, and the harness's
    task manager.

    The tasks that come with the harness are read only if the user's directory lacks a requested
    task, because reading them takes 20 s.
    """
    from lm_eval.tasks import TaskManager

    wanted = options.tasks.split(",")
    if options.include_path is not None:
        own = TaskManager(include_path=options.include_path, include_defaults=False)
        if set(wanted) <= set(own.all_subtasks):
            return wanted, own
    tasks = TaskManager(include_path=options.include_path)
    names: dict[str, None] = {}
    for name in wanted:
        matched = tasks.match_tasks([name])
        if not matched:
            raise SystemExit(f"lm-evaluation-harness has no task {name}; correct --tasks")
        names.update(dict.fromkeys(matched))
    return list(names), tasks


def _fitting(scores: Mapping[str, float]) -> dict[str, float]:
    """Return only as many scores, from the first on, as fit into one message to the daemon."""
    told, size = dict[str, float](), 0
    for name, value in scores.items():
        size += len(json.dumps({name: value}).encode())
        if size > _MOST_BYTES:
            print(f"{len(scores) - len(told)} more scores are only in {RESULTS}", flush=True)
            break
        told[name] = value
    return told


def _write(path: Path, tree: Mapping[str, Any]) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(tree, indent=1, default=str) + "\n", "utf-8")
    draft.replace(path)


def options_of(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the program. Exits if an option is wrong."""
    parser = argparse.ArgumentParser(prog="evaluation_harness", allow_abbrev=False)
    parser.add_argument("--tasks", required=True, help="names of tasks, with commas between them")
    parser.add_argument("--include_path", help="a directory with your tasks")
    parser.add_argument("--num_fewshot", type=int, help="examples before each question")
    parser.add_argument("--limit", type=float, help="questions of each task, or a fraction of them")
    parser.add_argument("--batch_size", default="1", help="requests at once, or auto")
    parser.add_argument("--device", help="device of the model, such as cpu")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None, report: Report = worker.report_evaluation) -> None:
    """Evaluate, write `results.json`, report the scores, and remove the exported model.

    With several ranks, each rank answers a part of the questions. Only rank 0 writes, reports and
    removes.
    """
    options = options_of(words)
    is_first = os.environ.get("RANK", "0") == "0"
    if os.environ.get("WORLD_SIZE") == "1":
        for name in _OF_SEVERAL:
            os.environ.pop(name, None)
    model, output = Path(os.environ["ZEROTOOLS_MODEL"]), Path(os.environ["ZEROTOOLS_OUTPUT_DIR"])
    evaluated = json.loads((output / _EVALUATED).read_text("utf-8"))
    os.chdir(options.include_path or output)  # relative paths of data in the user's tasks
    worker.phase("eval")
    try:
        found = evaluate(options, str(model))
    finally:
        if is_first:  # another attempt exports it anew
            shutil.rmtree(model, ignore_errors=True)
    if found is None:
        return
    scores = scores_of(found, options.tasks.split(","))
    _write(output / RESULTS, {**evaluated, "scores": scores, **found})
    for name, value in scores.items():
        print(f"{name} {value:.4f}", flush=True)
    report(int(evaluated["step"]), **_fitting(scores))
    worker.finished()


if __name__ == "__main__":
    main()
