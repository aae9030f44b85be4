"""job.json: everything in a training checkpoint except its tensors. Standard library only.

The record is plain JSON, so reading it runs no code. Every value is checked here when it is read.
The trainer writes the record. A reshard changes `world_size` and `rng` and keeps the rest.
`docs/reference/job-checkpoint.md` describes the fields.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.hub_layout import HubBlock, HubLayout, whole_tensor_block
from zerotools.io.files.read_json import read_json
from zerotools.runs.base_model_record import BaseRecord, base_from_tree
from zerotools.runs.job_checkpoint_file_names import RECORD as RECORD

FORMAT = "zerotools-job-checkpoint"
VERSION = 1
RNG_PER_RANK = "per-rank"
RNG_RESEED = "reseed"
_LARGEST_RECORD = 2**28  # it lists names of parameters
_OPTIONS = ("lr", "weight_decay", "betas", "eps", "momentum")


@dataclass(frozen=True, slots=True)
class OptimizerGroup:
    """A param group: parameters (by fully qualified names) with the same hyperparameters.

    `lr` is the learning rate of the last step. AdamW has `betas` and `eps`, SGD has `momentum`.
    """

    lr: float
    weight_decay: float
    betas: tuple[float, float] | None = None
    eps: float | None = None
    params: tuple[str, ...] = ()
    momentum: float | None = None

    def options(self) -> dict[str, Any]:
        """Return the hyperparameters that this optimizer has, by torch's names (`lr`, ...),
        without the parameters.
        """
        values = {name: getattr(self, name) for name in _OPTIONS}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class OptimizerRecord:
    """The optimizer of the run: its name (`adamw`, `sgd`) and its param groups."""

    name: str
    groups: tuple[OptimizerGroup, ...]


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The number of elements in the trainable and in the frozen parameters of a model. Tied
    parameters count once.
    """

    trainable: int
    frozen: int


@dataclass(frozen=True, slots=True)
class LoraRecord:
    """LoRA adapters on frozen weights: their rank, and their scale factor.

    Layers in `fan_in_fan_out` store their weight transposed. With a `base`, the frozen weights are
    in the base model's directory and not in the checkpoint.
    """

    rank: int
    scale: float
    fan_in_fan_out: tuple[str, ...] = ()
    base: BaseRecord | None = None


@dataclass(frozen=True, slots=True)
class DataRecord:
    """The data that the run reads, to detect a resumed run with other data.

    Attributes:
        sequences: the number of sequences in an epoch, without the sequences held out for
            evaluation (None: not recorded).
        contents: the files in reading order, each as the beginning of its SHA-256 and its name
            (empty: not recorded).
    """

    files: int
    tokens: int
    sequences: int | None = None
    contents: tuple[str, ...] = ()

    def changes(self, now: DataRecord) -> str:
        """Return a text that lists how the recorded data files differ from the files of `now`. It
        is empty if there are no differences, or if files are not recorded.
        """
        was, new = ([line.partition(" ")[::2] for line in each.contents] for each in (self, now))
        if not was or not new or [each for each, _ in was] == [each for each, _ in new]:
            return ""
        gone = {name: digest for digest, name in was if (digest, name) not in new}
        added = {name: digest for digest, name in new if (digest, name) not in was}
        found = {
            "changed": [name for name in gone if name in added],
            "no longer read": [name for name in gone if name not in added],
            "new": [name for name in added if name not in gone],
        }
        parts = [f"{_listed(names)} {what}" for what, names in found.items() if names]
        return ", ".join(parts) or "the same files in another order"


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join(shown)


@dataclass(frozen=True, kw_only=True, slots=True)
class LossScaleRecord:
    """The loss scaler of fp16 training, under DeepSpeed's names.

    A fixed scale has only `cur_scale`. `cur_iter` counts steps; `last_overflow_iter` is the last
    skipped step, or -1.
    """

    cur_scale: float
    dynamic: bool
    cur_iter: int = 0
    last_overflow_iter: int = -1
    cur_hysteresis: int = 1
    scale_window: int = 1000
    min_scale: float = 1.0
    delayed_shift: int = 1
    consecutive_hysteresis: bool = False

    def options(self) -> dict[str, Any]:
        """Return all recorded values keyed by name, except the scale itself and `dynamic`."""
        if not self.dynamic:
            return {}
        tree = dataclasses.asdict(self)
        return {name: tree[name] for name in tree if name not in ("cur_scale", "dynamic")}


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """The state of a training run after `step` of `steps_total` steps.

    Attributes:
        skipped_steps: the steps that did not update the weights because gradients overflowed.
        consumed_sequences: the number of sequences of the global data order that were read.
        world_size, stage, precision: the values of the run that saved the checkpoint.
        replicated: the flat DCP keys of the tensors that every rank holds completely.
        aliases: tied name -> the stored name.
        rng: `per-rank` if there is one `rank_RRRRR.json` for each of `world_size` ranks, else
            `reseed`.
        loss_scale: the loss scale of fp16 training.
        measured: `loss`, the mean over the steps since the previous checkpoint, and `eval_loss` if
            the model was evaluated at this step.
        hub: tensor that has another name or shape in a Hugging Face directory -> its blocks in the
            tensors there (`core.hub_layout`).
        engine: the engine that wrote the checkpoint; the tensors have its layout.
        weights_only: True if the checkpoint has only weights, so that the run cannot continue from
            it.
        made_from: the source of the tensors if another program saved them, else None. With a
            source, `seed`, `consumed_sequences`, `batch_size`, `sequence_length` and `schedule` are
            unknown.
    """

    step: int
    steps_total: int
    world_size: int
    stage: int
    precision: str
    seed: int
    consumed_sequences: int
    batch_size: int
    sequence_length: int
    optimizer: OptimizerRecord
    model: ModelRecord
    replicated: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    rng: str = RNG_RESEED
    data: DataRecord | None = None
    skipped_steps: int = 0
    loss_scale: LossScaleRecord | None = None
    hub: HubLayout = field(default_factory=dict)
    lora: LoraRecord | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    engine: str = "torch"
    weights_only: bool = False
    made_from: str | None = None
    torch_version: str | None = None
    zerotools_version: str | None = None

    @property
    def random_states(self) -> int:
        """The number of ranks with a file of their random number state: all of them, or 0."""
        return self.world_size if self.rng == RNG_PER_RANK else 0

    def resharded(self, world_size: int) -> JobRecord:
        """Return the record for the same run on another number of ranks. Its random number
        generators will be seeded again.
        """
        return dataclasses.replace(self, world_size=world_size, rng=RNG_RESEED)


def record_to_json(record: JobRecord) -> str:
    """Return the record as the text of job.json."""
    plain = dataclasses.replace(record, hub={})
    tree = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(plain)}
    del tree["hub"]
    for group in tree["optimizer"]["groups"]:
        for name in _OPTIONS:
            if group[name] is None:
                del group[name]
    if record.data is not None and record.data.sequences is None:
        del tree["data"]["sequences"]
    if record.data is not None and not record.data.contents:
        del tree["data"]["contents"]
    if record.lora is None:
        del tree["lora"]
    elif record.lora.base is None:
        del tree["lora"]["base"]
    for name, default in (("engine", "torch"), ("weights_only", False), ("made_from", None)):
        if tree[name] == default:
            del tree[name]
    if record.loss_scale is None:
        del tree["loss_scale"]
        if not record.skipped_steps:
            del tree["skipped_steps"]
    if not record.measured:
        del tree["measured"]
    text = json.dumps(tree, indent=1, sort_keys=False)
    if record.hub:
        # A line for each tensor: a model of many experts has thousands of blocks.
        lines = (f"  {json.dumps(n)}: {json.dumps(t)}" for n, t in hub_to_tree(record.hub).items())
        text = text.removesuffix("\n}") + ',\n "hub": {\n' + ",\n".join(lines) + "\n }\n}"
    return text + "\n"


def write_record(directory: Path, record: JobRecord) -> Path:
    """Write job.json in `directory`, a staging directory that is renamed later, and flush it to
    the disk.
    """
    path = directory / RECORD
    with path.open("w", encoding="utf-8") as file:
        file.write(record_to_json(record))
        file.flush()
        os.fsync(file.fileno())
    return path


def read_record(directory: Path) -> JobRecord:
    """Read the record of the checkpoint in `directory`.

    Raises:
        BadFile: job.json does not exist, or a field is missing or wrong; the message names the file
            and the field.
        Unsupported: a later version of zerotools wrote the file.
    """
    path = directory / RECORD
    try:
        tree = read_json(path, _LARGEST_RECORD)
    except (FileNotFoundError, NotADirectoryError):
        raise BadFile(f"{directory} has no {RECORD}: it is not a checkpoint of a job") from None
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is not JSON: {error}; copy or download it again") from None
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise BadFile(f'{path} does not have "format": "{FORMAT}": it is not a record of a job')
    if tree.get("version") != VERSION:
        raise Unsupported(
            f"{path} has version {tree.get('version')!r}, but this zerotools reads {VERSION}: use "
            "the version that wrote it, or a later one"
        )
    return _record(_Reader(path, tree))


def _record(read: _Reader) -> JobRecord:
    rng = read.text("rng")
    if rng not in (RNG_PER_RANK, RNG_RESEED):
        raise read.wrong("rng", f'"{RNG_PER_RANK}" or "{RNG_RESEED}"')
    optimizer, model = read.inner("optimizer"), read.inner("model")
    return JobRecord(
        step=read.count("step"),
        steps_total=read.count("steps_total"),
        world_size=read.count("world_size", least=1),
        stage=read.count("stage"),
        precision=read.text("precision"),
        seed=read.count("seed"),
        consumed_sequences=read.count("consumed_sequences"),
        batch_size=read.count("batch_size", least=1),
        sequence_length=read.count("sequence_length", least=1),
        optimizer=OptimizerRecord(
            optimizer.text("name"), tuple(_group(group) for group in optimizer.inners("groups"))
        ),
        model=ModelRecord(model.count("trainable"), model.count("frozen")),
        replicated=read.texts("replicated"),
        aliases=read.text_map("aliases"),
        schedule=read.inner("schedule").tree,
        rng=rng,
        data=None if read.tree.get("data") is None else _data(read.inner("data")),
        skipped_steps=read.count("skipped_steps") if "skipped_steps" in read.tree else 0,
        loss_scale=_loss_scale(read.inner("loss_scale")) if "loss_scale" in read.tree else None,
        measured=read.number_map("measured") if "measured" in read.tree else {},
        hub=_hub(read) if "hub" in read.tree else {},
        lora=_lora(read.inner("lora")) if "lora" in read.tree else None,
        engine=read.text("engine") if "engine" in read.tree else "torch",
        weights_only=read.flag("weights_only") if "weights_only" in read.tree else False,
        made_from=read.optional_text("made_from"),
        torch_version=read.optional_text("torch_version"),
        zerotools_version=read.optional_text("zerotools_version"),
    )


def _group(read: _Reader) -> OptimizerGroup:
    betas = read.tree.get("betas", [0, 0])
    if not (isinstance(betas, list) and len(betas) == 2 and all(map(_is_number, betas))):
        raise read.wrong("betas", "two numbers")
    has = read.tree.keys()
    return OptimizerGroup(
        lr=read.number("lr"),
        weight_decay=read.number("weight_decay"),
        betas=(float(betas[0]), float(betas[1])) if "betas" in has else None,
        eps=read.number("eps") if "eps" in has else None,
        momentum=read.number("momentum") if "momentum" in has else None,
        params=read.texts("params"),
    )


def _loss_scale(read: _Reader) -> LossScaleRecord:
    return LossScaleRecord(
        cur_scale=read.number("cur_scale", above=0),
        dynamic=read.flag("dynamic"),
        cur_iter=read.count("cur_iter"),
        last_overflow_iter=read.count("last_overflow_iter", least=-1),
        cur_hysteresis=read.count("cur_hysteresis", least=1),
        scale_window=read.count("scale_window", least=1),
        min_scale=read.number("min_scale", above=0),
        delayed_shift=read.count("delayed_shift", least=1),
        consecutive_hysteresis=read.flag("consecutive_hysteresis"),
    )


def _hub(read: _Reader) -> HubLayout:
    try:
        return hub_from_tree(read.tree["hub"])
    except ValueError as error:
        raise BadFile(f"{read.path}: hub: {error}") from None


def _lora(read: _Reader) -> LoraRecord:
    transposed = read.texts("fan_in_fan_out") if "fan_in_fan_out" in read.tree else ()
    rank, scale = read.count("rank", least=1), read.number("scale", above=0)
    if "base" not in read.tree:
        return LoraRecord(rank, scale, transposed)
    try:
        return LoraRecord(rank, scale, transposed, base_from_tree(read.tree["base"]))
    except ValueError as error:
        raise BadFile(f"{read.path}: lora.base: {error}") from None


def _data(read: _Reader) -> DataRecord:
    known = read.tree.get("sequences") is not None
    sequences = read.count("sequences", least=1) if known else None
    contents = read.texts("contents") if "contents" in read.tree else ()
    return DataRecord(read.count("files"), read.count("tokens"), sequences, contents)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class _Reader:
    """Reads values of the expected type from one JSON object. `prefix` is the dotted path of this
    object in the file, for messages.
    """

    path: Path
    tree: Mapping[str, Any]
    prefix: str = ""

    def wrong(self, key: str, wanted: str) -> BadFile:
        return BadFile(
            f"{self.path}: {self.prefix}{key} is {self.tree.get(key)!r:.80}, but must be {wanted}"
        )

    def count(self, key: str, *, least: int = 0) -> int:
        value = self.tree.get(key)
        if type(value) is not int or value < least:
            raise self.wrong(key, f"an integer >= {least}")
        return value

    def number(self, key: str, *, above: float | None = None) -> float:
        value = self.tree.get(key)
        if not _is_number(value):
            raise self.wrong(key, "a number")
        if above is not None and not above < value < math.inf:  # type: ignore[operator]
            raise self.wrong(key, f"a finite number above {above:g}")
        return float(value)  # type: ignore[arg-type]

    def flag(self, key: str) -> bool:
        value = self.tree.get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str) -> str:
        value = self.tree.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def optional_text(self, key: str) -> str | None:
        return None if self.tree.get(key) is None else self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.tree.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return tuple(value)

    def text_map(self, key: str) -> dict[str, str]:
        value = self.inner(key).tree
        if not all(isinstance(item, str) for item in value.values()):
            raise self.wrong(key, "a table of strings")
        return dict(value)

    def number_map(self, key: str) -> dict[str, float]:
        inner = self.inner(key)
        return {name: inner.number(name) for name in inner.tree}

    def inner(self, key: str) -> _Reader:
        value = self.tree.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return _Reader(self.path, value, f"{self.prefix}{key}.")

    def inners(self, key: str) -> list[_Reader]:
        value = self.tree.get(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, "a list of tables")
        return [
            _Reader(self.path, item, f"{self.prefix}{key}[{number}].")
            for number, item in enumerate(value)
        ]


def hub_to_tree(layout: HubLayout) -> dict[str, list[dict[str, Any]]]:
    """Return the JSON value of `layout` (`core.hub_layout`) for job.json:

        {"model.layers.0.mlp.experts.gate_up_proj": [
           {"tensor": "model.layers.0.mlp.experts.0.gate_proj.weight", "shape": [32, 16],
            "start": [0, 0, 0], "size": [1, 32, 16]}, ...]}

    `start` and `size` are the block's position in the job's tensor; by default the block begins at
    0 and has `shape`, the shape of the Hub's tensor. `offset` and `strides`, in elements, are the
    block's position in the Hub's tensor; by default the block is contiguous from the beginning.
    Tensors with the same name and shape on the Hub are not listed.
    """
    return {name: [_to_tree(block) for block in blocks] for name, blocks in layout.items()}


def _to_tree(block: HubBlock) -> dict[str, Any]:
    tree: dict[str, Any] = {"tensor": block.name, "shape": list(block.shape)}
    if block.box != Box.whole(block.shape):
        tree |= {"start": list(block.box.start), "size": list(block.box.shape)}
    if block.offset:
        tree["offset"] = block.offset
    if block.strides is not None:
        tree["strides"] = list(block.strides)
    return tree


def hub_from_tree(tree: Any) -> dict[str, tuple[HubBlock, ...]]:
    """Return the layout of the Hub's tensors from the JSON value that `hub_to_tree` made.

    Raises:
        ValueError: the value is malformed. The text of the error continues a sentence that begins
            with the name of the field.
    """
    if not isinstance(tree, dict):
        raise ValueError("must be a table")
    return {name: _blocks(name, blocks) for name, blocks in tree.items()}


def _blocks(name: str, value: Any) -> tuple[HubBlock, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} must be a list of blocks")
    return tuple(_block(name, each) for each in value)


def _block(name: str, tree: Any) -> HubBlock:
    if not isinstance(tree, dict) or not isinstance(tree.get("tensor"), str):
        raise ValueError(f"{name} has a block without the name of a tensor")
    whole = whole_tensor_block(tree["tensor"], _counts(name, tree, "shape"))
    box = Box(
        _counts(name, tree, "start") if "start" in tree else whole.box.start,
        _counts(name, tree, "size") if "size" in tree else whole.box.shape,
    )
    offset = tree.get("offset", 0)
    strides = _counts(name, tree, "strides") if "strides" in tree else None
    block = HubBlock(whole.name, whole.shape, box, offset, strides)
    sizes = {len(box.start), len(box.shape), len(block.steps)}
    if type(offset) is not int or offset < 0 or len(sizes) > 1:
        raise ValueError(f"{name} has a block of {whole.name} that is not valid: {tree!r:.200}")
    if not box.is_empty and block.last >= Box.whole(whole.shape).numel:
        raise ValueError(f"{name} has a block that ends outside of {whole.name}")
    return block


def _counts(name: str, tree: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = tree.get(key)
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError(f"{name} has a block with {key} = {value!r:.80}, not a list of counts")
    return tuple(value)
