"""Write a first job file for a model, some data and a machine.

The job has the cheapest configuration that fits into memory, and comments with the reasons.

The data determines the training: text means continued pretraining, examples mean fine-tuning, and
preferences mean DPO. The job trains for one epoch with a usual learning rate, and with as many
sequences at a time as fit into memory, but at most `MOST_SEQUENCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.core.training_memory_layout import NF4, MemoryLayout
from zerotools.jobs.memory_estimates.fill_missing_keys import tokenizer_of, whole_job
from zerotools.jobs.memory_estimates.find_models_and_data import (
    CONFIG,
    PREFERENCES,
    TEXT,
    FoundData,
    has_weights,
)
from zerotools.jobs.memory_estimates.training_estimate import (
    Estimate,
    assumed_length,
    estimate_work,
)
from zerotools.jobs.memory_estimates.write_configs import OFFLOAD_DIRECTORY, job_tree
from zerotools.ops.estimate.activation_memory import MicroBatch, attention_on_gpus
from zerotools.ops.estimate.fit_search import LORA_RANK, AllowedChanges, FitChange, Way
from zerotools.ops.estimate.offload_table import Workload, row_of_layout
from zerotools.ops.estimate.parameter_shapes import read_shape, with_adapters
from zerotools.ops.estimate.rank_memory import Machine
from zerotools.ops.estimate.recommendation import gib_text, largest_batch, needs_of

MOST_SEQUENCES = 8
_BYTES = 256
"""The vocabulary size without a tokenizer: one token for each value of a byte."""
FULL, LORA, QLORA = "full", "lora", "qlora"
METHODS = (FULL, LORA, QLORA)
"""The methods of training: of all weights, of adapters, or of adapters on a base model in 4
bits.
"""
_TEMPLATES = ("chat_template.jinja", "chat_template.json")

ChooseConfiguration = Callable[[Sequence[Way]], Way]
"""A function that selects one of the configurations that fit into memory.

It gets them in the order of their costs.
"""


@dataclass(frozen=True)
class FirstJob:
    """A first job file as a tree, comments for some of its keys, the memory estimate, and the
    chosen configuration (`way`).
    """

    tree: Mapping[str, Any]
    comments: Mapping[str, str]
    estimate: Estimate
    way: Way


@dataclass(frozen=True, kw_only=True)
class FirstTraining:
    """The training that a user requests: a model, data, a precision, one of METHODS, and a sequence
    length in tokens (None: a usual length).

    Files of the job are in `directory`. `free_disk` is the free space on the disk of `directory`,
    in bytes (None: unknown).
    """

    model: Path
    data: FoundData
    precision: str
    method: str = FULL
    sequence: int | None = None
    directory: Path = Path()
    free_disk: int | None = None


def first_job(
    wanted: FirstTraining, machine: Machine, choose: ChooseConfiguration | None = None
) -> FirstJob:
    """Make the job file for the training `wanted` on `machine`.

    `choose` selects one of the configurations that fit. If `choose` is None, the cheapest
    configuration is used.

    Raises:
        BadRequest: the model does not exist or has no weights to train adapters on, or no
            configuration fits on the machine.
        BadFile, Unsupported: the model's shapes cannot be read.
    """
    model, data = wanted.model, wanted.data
    directory = model if model.is_dir() else model.parent
    table = _model_table(model, directory)
    adapts = "path" in table
    if wanted.method != FULL and not adapts:
        raise BadRequest(
            f"{model}: has no weights (.safetensors), which adapters need; name a model "
            "directory with weights, or train all weights (--method full)"
        )
    tokenizer = tokenizer_of({"config": str(directory / CONFIG)})
    if data.key != TEXT:
        _check_tokenizer(wanted, tokenizer)
    work = _work_of(wanted, machine)
    known = work.model.architecture
    if data.key == TEXT and tokenizer is None and known is not None and known.vocabulary < _BYTES:
        raise BadRequest(
            f"{model}: has a vocabulary of {known.vocabulary} and no tokenizer, but text without "
            f"a tokenizer needs {_BYTES} token ids; put the model's tokenizer.json into "
            "its directory"
        )
    allowed = AllowedChanges(adapters=adapts, packed=adapts)
    found = estimate_work(work, machine, allowed, {"model": table, **_lora_of(wanted.method)})
    if wanted.sequence is None:
        found = replace(found, assumed=assumed_length(work.model))
    way = _chosen(wanted, found, choose)
    way = _with_batch(way, replace(machine, gpus=way.row.layout.world_size))
    tables = {**found.tables, **way.lora_table}
    tree = job_tree(tables, way.row.layout, way.work.micro, on_gpu=machine.on_gpu)
    tree["data"] = {data.key: [data.pattern], **tree["data"]}
    if "path" in tree.get("offload", {}):
        tree["offload"]["path"] = str(wanted.directory.absolute() / OFFLOAD_DIRECTORY)
    whole = whole_job(found, way, tree)
    return FirstJob(whole.tree, whole.comments, found, way)


def _check_tokenizer(wanted: FirstTraining, directory: str | None) -> None:
    """Raise an error if the data are examples and the model has no tokenizer that can encode them.
    `directory` is the tokenizer's directory; None if the model has no tokenizer.
    """
    if directory is None:
        raise BadRequest(
            f"{wanted.model}: has no tokenizer, but examples need one; put the model's "
            "tokenizer.json into its directory, or train on plain text"
        )
    if wanted.data.is_conversation and not has_chat_template(Path(directory)):
        raise BadRequest(
            f"{wanted.data.pattern}: has conversations, but the tokenizer in {directory} has no "
            "chat template to render them; put the model's chat_template.jinja there"
        )


def has_chat_template(directory: Path) -> bool:
    """Return whether the tokenizer in `directory` has a chat template."""
    if any((directory / name).is_file() for name in _TEMPLATES):
        return True
    try:
        return '"chat_template"' in (directory / "tokenizer_config.json").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def _work_of(wanted: FirstTraining, machine: Machine) -> Workload:
    """Return the workload of the requested training: one example in each forward pass, and no
    setting that saves memory.
    """
    shape = read_shape(str(wanted.model))
    sequence = wanted.sequence or shape.usual_length
    packs, pair = wanted.method == QLORA, 2 if wanted.data.key == PREFERENCES else 1
    layout = MemoryLayout(stage=3, world_size=machine.gpus, precision=wanted.precision)
    if wanted.method != FULL:
        shape = with_adapters(shape, LORA_RANK, packs_frozen=packs)
        layout = replace(layout, frozen_precision=NF4 if packs else "train", has_adapters=True)
    chunked = "auto" if pair == 1 else "off"
    micro = MicroBatch(
        pair,
        sequence,
        wanted.precision,
        attention=attention_on_gpus(wanted.precision),
        chunked_loss=chunked,
        per_example=pair,
    )
    return Workload(shape, layout, micro)


def _lora_of(method: str) -> dict[str, dict[str, Any]]:
    packed = {"frozen_precision": NF4} if method == QLORA else {}
    return {} if method == FULL else {"lora": {"rank": LORA_RANK, **packed}}


def _chosen(wanted: FirstTraining, found: Estimate, choose: ChooseConfiguration | None) -> Way:
    free = wanted.free_disk
    ways = [way for way in found.ways if FitChange.MORE_GPUS not in way.changes]
    ways = [way for way in ways if free is None or way.disk_bytes <= free]
    if choose is not None and ways:
        return choose(ways)
    best = next((way for way in ways if way.is_as_asked), None)
    if best is not None:
        return best
    others = []
    if any(FitChange.LORA in way.changes for way in ways):
        packed = all(
            FitChange.PACKED in way.changes for way in ways if FitChange.LORA in way.changes
        )
        others.append(f"--method {QLORA if packed else LORA} would fit")
    others += [f"{way.words} would do" for way in found.ways if FitChange.MORE_GPUS in way.changes]
    if free is not None and found.search.best is not None:
        near = needs_of(found.search.best, found.machine)
        reason = f"{found.search.best.words} takes {near}, but only {gib_text(free)} are free"
    else:
        reason = found.choice.reason
    raise BadRequest("; ".join([f"{wanted.model}: {reason}", *others]))


def _with_batch(way: Way, machine: Machine) -> Way:
    """Return the configuration `way` with the largest micro batch that fits on the machine and
    is a power of two.
    """
    micro = way.work.micro
    if micro is None:
        return way
    most, batch = largest_batch(way, machine, MOST_SEQUENCES * micro.per_example), micro.batch
    while 2 * batch <= min(most or 1, MOST_SEQUENCES):
        batch *= 2
    work = replace(way.work, micro=replace(micro, batch=batch))
    row = row_of_layout(work, machine, way.row.layout, way.row.offload)
    return replace(way, work=work, row=row)


def _model_table(model: Path, directory: Path) -> dict[str, str]:
    if model.is_dir() and has_weights(directory):
        return {"path": str(model)}
    return {"config": str(model / CONFIG if model.is_dir() else model)}
