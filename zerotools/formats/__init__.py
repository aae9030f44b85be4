"""The checkpoint formats: detect the format of a path, and read any checkpoint.

`FORMATS` is the table of all formats; functions that use a table take it as an argument. Formats do
not import each other. Readers and writers are imported when they are first used.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

from zerotools.core.adapter_tensor_names import state_without_weights
from zerotools.core.checkpoint import Checkpoint, Problem
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.training_state import TrainingState
from zerotools.formats.dcp.format import DcpFormat
from zerotools.formats.deepspeed.format import DeepSpeedFormat
from zerotools.formats.deepspeed.universal.format import UniversalFormat
from zerotools.formats.detect import Detected, detect_in
from zerotools.formats.format import (
    Format,
    FormatTable,
    ReadOptions,
    UnfinishedCheckpoint,
    option_flag,
)
from zerotools.formats.megatron.format import MegatronFormat
from zerotools.formats.orbax.format import OrbaxFormat
from zerotools.formats.read_optimizer_next_to_model import (
    joined_training,
    with_optimizer,
    with_steps_of_trainer,
)
from zerotools.formats.safetensors.format import SafetensorsFormat
from zerotools.formats.torchfile.format import TorchFileFormat
from zerotools.io.files.directory_entries import is_there
from zerotools.io.files.source_stamps import WrittenApart, recording_sources, written_apart
from zerotools.io.huggingface.model_sidecars import CONFIG, find_config
from zerotools.runs.optimizer_names_record import named_order_of
from zerotools.runs.thinning_record import read_thinned


def table_of(*formats: Format) -> FormatTable:
    """Return the table of all formats, keyed by name. If a directory holds checkpoints in several
    formats, the format that comes first in the table is read.
    """
    return {form.name: form for form in formats}


# Formats of shards with optimizer state come first, because weights in other formats may have been
# exported from these shards.
FORMATS = table_of(
    MegatronFormat(),
    DcpFormat(),
    DeepSpeedFormat(),
    UniversalFormat(),
    OrbaxFormat(),
    SafetensorsFormat(),
    TorchFileFormat(),
)


def detect(path: Path, *, tag: str | None = None, table: FormatTable = FORMATS) -> Detected:
    """Find the checkpoint at `path`; return its format and its own path.

    If `path` is the directory of a run, return the newest finished checkpoint in it.

    Raises:
        BadRequest: `path` does not exist, or holds several checkpoints to choose from.
        UnfinishedCheckpoint: the save of the checkpoint did not finish.
        BadFile: it is not a checkpoint.
    """
    return detect_in(path, table, ReadOptions(tag=tag))


def read(
    path: Path,
    *,
    tag: str | None = None,
    layout: Path | None = None,
    section: str | None = None,
    table: FormatTable = FORMATS,
) -> Checkpoint:
    """Read the checkpoint at `path`, of any format. It must contain exactly one model, or `section`
    must select one.

    If `path` is the file `best` or `latest` of a job's output directory, the checkpoint that this
    file names is read.

    Args:
        tag: selects a tag of a DeepSpeed save directory.
        layout: a file of rules that say how weights are divided among tensor-parallel ranks, for
            checkpoints that do not record this.
        section: selects one of several models in a DCP.

    Raises:
        BadRequest: `path` does not exist, has no such tag or section, or has several models and
            `section` selects none.
        BadFile: it is not a checkpoint, or is damaged or unfinished.
        Unsupported: zerotools does not read this format.
    """
    checkpoint = read_any(path, tag=tag, layout=layout, section=section, table=table)
    require_model(checkpoint)
    return checkpoint


def read_any(
    path: Path,
    *,
    tag: str | None = None,
    layout: Path | None = None,
    section: str | None = None,
    table: FormatTable = FORMATS,
) -> Checkpoint:
    """Read the checkpoint at `path` like `read`, but also accept a checkpoint that cannot be
    exported.

    It cannot be exported if it has several models and `section` selects none; then
    `Origin.question` asks the user to select one. It also cannot be exported if zerotools
    recognises its format but does not read it; then `Origin.refusal` has the reason.
    """
    if path.name in ("", ".."):  # an output gets the name of its source
        path = path.resolve()
    if path.name in ("best", "latest") and path.is_file():  # it names one of a job's checkpoints
        path = import_module("zerotools.runs.find_job_checkpoints").resolve_hint(path)
    options = ReadOptions(tag, layout, section)
    if not is_there(path):
        return _read(path, options, table)
    try:
        return _read(path, options, table)
    except FileNotFoundError as error:
        raise BadFile(
            f"{error.filename or path} disappeared while zerotools was reading it. Wait until no "
            "program writes or cleans up there, and run the command again"
        ) from None


def _read(path: Path, options: ReadOptions, table: FormatTable) -> Checkpoint:
    found = detect_in(path, table, options)
    form = table[found.format]
    useless = [option_flag(name) for name in options.given() if name not in form.read_options]
    if useless:
        raise BadRequest(
            f"{found.path} is {form.title}: run the command without {' and '.join(useless)}, "
            "which this format does not use"
        )
    with recording_sources() as sources:
        checkpoint = with_optimizer(form.read(found.path, options), table)
        records = (read_thinned(checkpoint.root), named_order_of(checkpoint))
    said = [record.sentence() for record in records if record is not None]
    checkpoint = replace(checkpoint, stamps=sources.stamps)
    apart = files_written_apart(checkpoint)
    said += [] if apart is None else [apart.sentence()]
    origin = replace(checkpoint.origin, notes=(*found.notes, *checkpoint.origin.notes, *said))
    config = checkpoint.model_sidecars.get(CONFIG) or find_config(checkpoint.root)
    checkpoint = _refusing_lost_adapters(checkpoint)
    return replace(checkpoint, origin=origin, own_config=config)


def _refusing_lost_adapters(checkpoint: Checkpoint) -> Checkpoint:
    """Add a problem to `checkpoint` if it has optimizer state of LoRA adapters without their
    weights.

    PEFT 0.21 saves such a checkpoint for a model in FSDP1.
    """
    lost = state_without_weights(checkpoint.tensors)
    if not lost:
        return checkpoint
    problem = Problem(
        f"{checkpoint.origin.path} has optimizer state of {count_text(len(lost), 'LoRA tensor')} "
        f"({lost[0]}, ...) but not their weights: the program that saved it left them out, as "
        "PEFT 0.21 does with FSDP1. Save it again with another release of PEFT or with FSDP2",
        prevents_output=True,
    )
    return replace(checkpoint, problems=[*checkpoint.problems, problem])


def files_written_apart(checkpoint: Checkpoint) -> WrittenApart | None:
    """Return the rank files that, according to their modification times, are from another save, or
    None.
    """
    if checkpoint.origin.world_size in (None, 1):
        return None
    root = checkpoint.root.absolute()
    found = {name: checkpoint.stamps.get(root / name) for name in checkpoint.files}
    times = {name: each.mtime_ns / 1e9 for name, each in found.items() if each is not None}
    return written_apart(times)


def require_model(checkpoint: Checkpoint) -> None:
    """Raise an error if the checkpoint cannot be exported, only inspected.

    Raises:
        BadRequest: it has several models, and none is selected.
        Unsupported: its format is recognised but not read.
    """
    require_readable(checkpoint)
    if checkpoint.origin.question is not None:
        raise BadRequest(checkpoint.origin.question)


def require_readable(checkpoint: Checkpoint) -> None:
    """Raise an error if the format of the checkpoint is recognised but not read.

    Raises:
        Unsupported: names the format.
    """
    if checkpoint.origin.refusal is not None:
        raise Unsupported(checkpoint.origin.refusal)


def format_of(checkpoint: Checkpoint, table: FormatTable = FORMATS) -> Format:
    """Return the format of `checkpoint`, which may be an output that is planned but not yet
    written.
    """
    return table[checkpoint.origin.format]


def training_of(checkpoint: Checkpoint, table: FormatTable = FORMATS) -> TrainingState:
    """Return the training state of `checkpoint`, which must be a result of `read`.

    Numbers that the files store as tensors, such as `step`, are read from the files.

    Raises:
        BadFile: the files contradict each other.
    """
    training = format_of(checkpoint, table).training_of(checkpoint)
    state = checkpoint.optimizer_checkpoint
    if state is None:
        return with_steps_of_trainer(checkpoint, training)
    return joined_training(checkpoint, training, format_of(state, table).training_of(state))


__all__ = [
    "FORMATS",
    "Detected",
    "Format",
    "FormatTable",
    "UnfinishedCheckpoint",
    "detect",
    "format_of",
    "read",
    "read_any",
    "require_model",
    "require_readable",
    "table_of",
    "training_of",
]
