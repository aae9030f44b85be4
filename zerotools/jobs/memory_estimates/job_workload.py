"""Read from a job file the values that determine its memory: the model, the layout and the
micro batch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile_tables.data import longest_sequence
from zerotools.jobs.jobfile_tables.model import AUTO
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.ops.estimate.activation_memory import EAGER, SHARED, MicroBatch, attention_on_gpus
from zerotools.ops.estimate.offload_table import Workload
from zerotools.ops.estimate.parameter_shapes import (
    ModelShape,
    cut_by_tensor_ranks,
    of_config,
    read_shape,
    size_in,
    with_adapters,
)
from zerotools.ops.estimate.rank_memory import Buckets


def workload_of(spec: JobSpec, *, asks: bool = True) -> Workload:
    """Return the values of the job `spec` that determine the memory of each rank.

    To find the shapes of a model, a process that imports transformers may be needed. If `asks` is
    false, no process is started.

    Raises:
        BadRequest: the model's config cannot be read.
        Unsupported: the engine is `script`, and its program is not known.
    """
    if spec.engine == "script":
        raise Unsupported(
            'engine = "script": the memory of your program is not known; run it once, and '
            "zerotools show prints its peaks"
        )
    model = _model(spec, asks=asks)
    micro = micro_batch_of(spec, model)
    model = cut_by_tensor_ranks(model, spec.zero.tensor_ranks)
    return Workload(model, memory_layout_of(spec), micro, _buckets(spec), spec.train.accumulate)


def _model(spec: JobSpec, *, asks: bool) -> ModelShape:
    config = spec.model.config
    python = (spec.python or sys.executable) if asks else None
    if isinstance(config, Mapping):
        model = of_config(config, "model.config", python)
    else:
        named = config if spec.model.path is None else spec.model.path
        if named is None:
            raise BadRequest("the job has no model; set model.path or model.config")
        if not Path(named).exists():
            raise BadRequest(
                f"model.path = {named}: does not exist; download the model first, or run "
                f"zerotools estimate {size_in(str(named))} for a model of that size"
            )
        model = read_shape(str(named), python)
    lora = spec.lora
    if lora.rank is None:
        return model
    return with_adapters(model, lora.rank, lora.target_modules, packs_frozen=lora.packs_frozen)


def micro_batch_of(spec: JobSpec, model: ModelShape) -> MicroBatch | None:
    """Return the micro batch of a rank: the number and the length of its sequences.

    Return None if the sequence length is not known.
    """
    positions = None if model.architecture is None else model.architecture.positions or None
    sequence = longest_sequence(spec.data, positions)
    if sequence is None:
        return None
    train = spec.train
    attention = SHARED if spec.device == "cpu" else attention_on_gpus(train.precision)
    if spec.model.attention not in (None, AUTO, "sdpa"):
        attention = EAGER if spec.model.attention == EAGER else SHARED
    pair = 2 if spec.data.preferences else 1  # both answers
    batch = train.micro_batch_size or max(1, train.batch_size // spec.data_ranks)
    return MicroBatch(
        pair * batch,
        sequence,
        train.precision,
        train.activation_checkpointing,
        attention,
        "off" if pair > 1 else train.chunked_loss,
        spec.zero.sequence_ranks,
        spec.zero.tensor_ranks,
        pair,
    )


def _buckets(spec: JobSpec) -> Buckets:
    tree: Any = spec.deepspeed.tree.get("zero_optimization", {})
    found = Buckets()
    if not isinstance(tree, Mapping):
        return found
    names = {
        "reduce": "reduce_bucket_size",
        "allgather": "allgather_bucket_size",
        "prefetch": "stage3_prefetch_bucket_size",
        "live": "stage3_max_live_parameters",
    }
    said = {
        field: int(float(tree[name]))
        for field, name in names.items()
        if isinstance(tree.get(name), (int, float)) and tree[name] > 0
    }
    return replace(found, **said)


def with_ranks(spec: JobSpec, ranks: int) -> JobSpec:
    """Return the job `spec` with another number of ranks.

    Raises:
        BadRequest: the number does not divide the job's batch.
    """
    together = spec.zero.same_data_ranks
    if ranks % together:
        raise BadRequest(
            f"{ranks} ranks are not a multiple of the {together} ranks that compute the same "
            f"sequences together; use {together * max(1, ranks // together)} ranks"
        )
    if spec.train.batch_size % (ranks // together):
        whose = "" if together == 1 else f" in groups of {together}"
        raise BadRequest(
            f"train.batch_size = {spec.train.batch_size} cannot be divided evenly among {ranks} "
            f"ranks{whose}; use a number of ranks that divides it"
        )
    if spec.device == "cpu":
        return replace(spec, ranks=ranks)
    return replace(spec, gpus=ranks)


def is_job_file(path: Path) -> bool:
    """Return True if the file `path` is a job file, and False if it is a model's config."""
    if path.suffix == ".toml":
        return True
    if path.suffix != ".json":
        return False
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(tree, dict) and isinstance(tree.get("model"), dict)
