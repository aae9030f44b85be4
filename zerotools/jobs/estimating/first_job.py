"""A first job of a model, some data and a machine: the fastest setting that fits, with reasons.

What nobody asked about is a usual value: one epoch, a learning rate for fine-tuning where the model
has weights, and as many sequences at a time as fit, at most `MOST_SEQUENCES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.estimating.estimating import Estimate, estimate_model
from zerotools.jobs.estimating.seen_here import CONFIG, EXAMPLES, SeenData
from zerotools.jobs.estimating.written import job_tree
from zerotools.ops.estimate.model_shape import read_shape
from zerotools.ops.estimate.terms import Machine

GIB = 1 << 30
MOST_SEQUENCES = 8
LONGEST_SEQUENCE = 2048
FINE_TUNING_RATE, FIRST_RATE = 1e-5, 3e-4
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
CHECKPOINTS_OF_A_RUN = 500


@dataclass(frozen=True)
class FirstJob:
    """A job file as a tree, a comment beside some of its keys, and the estimate that it is from."""

    tree: Mapping[str, Any]
    comments: Mapping[str, str]
    estimate: Estimate


def first_job(model: Path, data: SeenData, machine: Machine, precision: str) -> FirstJob:
    """The job that trains `model` on `data`.

    Raises:
        BadRequest: there is no such model, or nothing fits on the machine.
        BadFile, Unsupported: its shapes cannot be read.
    """
    directory = model if model.is_dir() else model.parent
    shape = read_shape(str(model))
    positions = 0 if shape.architecture is None else shape.architecture.positions
    sequence = min(positions or LONGEST_SEQUENCE, LONGEST_SEQUENCE)
    found, again = _fitting(shape, machine, sequence, precision)
    row = found.choice.row
    if row is None:
        advice = "; ".join(found.choice.advice)
        raise BadRequest(f"{model}: {found.choice.reason}; {advice}")
    batch = _batch(found.choice.largest_batch)
    found = estimate_model(
        shape,
        machine,
        batch=batch,
        sequence=sequence,
        precision=precision,
        checkpointing=again,
        model_table=_model_table(model, directory),
    )
    chosen = next(r for r in found.rows if (r.stage, r.offload) == (row.stage, row.offload))
    tree = job_tree(found.tables, chosen.layout, found.work.micro, on_gpu=machine.on_gpu)
    tree["data"] = {data.key: [data.pattern], **tree["data"]}
    if not any((directory / name).is_file() for name in _TOKENIZERS):
        tree["data"]["tokenizer"] = "bytes"
    has_weights = "path" in tree["model"]
    rate = FINE_TUNING_RATE if has_weights else FIRST_RATE
    tree["train"] |= {"epochs": 1.0, "learning_rate": rate}
    tree["checkpoint"] = {"every": CHECKPOINTS_OF_A_RUN}
    return FirstJob(tree, _comments(found, data, row.stage, has_weights=has_weights), found)


def _fitting(shape: Any, machine: Machine, sequence: int, precision: str) -> tuple[Estimate, bool]:
    """The estimate of one sequence at a time, and whether blocks are computed twice for it."""
    plain = estimate_model(shape, machine, sequence=sequence, precision=precision)
    if plain.choice.row is not None and plain.choice.row.offload == "none":
        return plain, False
    again = estimate_model(
        shape, machine, sequence=sequence, precision=precision, checkpointing=True
    )
    return (again, True) if again.choice.row is not None else (plain, False)


def _batch(largest: int | None) -> int:
    """The largest power of two that fits; 1 where that is not known."""
    batch = 1
    while 2 * batch <= min(largest or 1, MOST_SEQUENCES):
        batch *= 2
    return batch


def _model_table(model: Path, directory: Path) -> dict[str, str]:
    has_weights = any(next(directory.glob(pattern), None) is not None for pattern in _WEIGHTS)
    if model.is_dir() and has_weights:
        return {"path": str(model)}
    return {"config": str(model / CONFIG if model.is_dir() else model)}


def _comments(found: Estimate, data: SeenData, stage: int, *, has_weights: bool) -> dict[str, str]:
    row = next(r for r in found.rows if r.stage == stage)
    rate = "usual for fine-tuning" if has_weights else "usual for a small model from the start"
    comments = {
        "model.path": "the weights to start from",
        "model.config": "no weights: the run starts from random ones",
        f"data.{data.key}": "prompts and answers" if data.key == EXAMPLES else "plain text",
        "data.sequence_length": "tokens; longer sequences take more memory",
        "data.tokenizer": "the model has no tokenizer beside it; name a directory with one",
        "train.batch_size": "sequences of a step, of all ranks together",
        "train.learning_rate": rate,
        "train.activation_checkpointing": "less memory, about a third more time",
        "train.epochs": "or train.steps",
        "zero.stage": found.choice.reason,
        "checkpoint.every": "steps; a stopped or crashed job resumes from the newest",
    }
    if found.machine.on_gpu:
        peak = f"{row.memory.peak / GIB:.1f} of {found.machine.gpu_memory / GIB:.1f} GiB on each"
        comments["gpus"] = f"estimated: {peak}"
    return comments
