"""What a checkpoint should be after a conversion, said here once more and independently: which
words each format drops, and what becomes of tensors and numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.formats.elements import elements
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from zerotools.core.training_state import ParamGroup, TrainingState
from zerotools.formats import FORMATS, FormatTable
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.conversions.convert import prepare_convert
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.training_summary import json_value

WEIGHTS = ("param", "buffer")
LOOSE = "state"  # tensors of the client's own
WORDS = (
    "param_groups", "lr_scheduler", "loss_scale", "steps", "ds_config", "client", "frozen",
)  # fmt: skip
OF_WEIGHTS = ("safetensors", "orbax")  # formats that are written without the run
# Options that only a kernel of DeepSpeed's needs, or its split of experts.
OF_KERNELS = {"bias_correction", "step", "moe"}
PRECISIONS = {"bf16": BFLOAT16, "fp16": FLOAT16}


@dataclass(frozen=True)
class Hop:
    """One conversion: a target and its options."""

    to: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Held:
    """All that a checkpoint holds: the bytes of every tensor, tied names, and the run."""

    format: str
    tensors: Mapping[Key, Array]
    aliases: Mapping[str, str]
    training: TrainingState
    config_ties: bool = False
    random_state: bool = False

    @classmethod
    def of(cls, path: Path, table: FormatTable = FORMATS) -> Held:
        checkpoint: Checkpoint = formats.read(path, table=table)
        tensors = {key: elements(checkpoint, key) for key in checkpoint.tensors}
        training = formats.training_of(checkpoint, table)
        config = checkpoint.model_sidecars.get("config.json")
        ties = config is not None and json.loads(config.read_text()).get("tie_word_embeddings")
        job = formats.format_of(checkpoint, table).job_record(checkpoint)
        random = job is not None and job.rng == "per-rank"
        return cls(
            checkpoint.origin.format, tensors, checkpoint.aliases, training, bool(ties), random
        )

    @property
    def trained(self) -> set[str]:
        return {name for group in self.training.groups for name in group.params}

    @property
    def words(self) -> set[str]:
        """Every role and part of the run that is there."""
        run = self.training
        counters = (run.steps, run.skipped, run.samples)
        there = {
            "param_groups": run.groups,
            "lr_scheduler": run.lr_scheduler is not None,
            "loss_scale": run.loss_scale,
            "steps": any(number is not None for number in counters),
            "ds_config": run.ds_config is not None,
            "client": run.client or any(key.role == LOOSE for key in self.tensors),
            "frozen": run.frozen,
            "aliases": self.aliases,
            "random state": self.random_state,
        }
        roles = {key.role for key in (*self.tensors, *run.scalars)} - {"param", LOOSE}
        return roles | {word for word, value in there.items() if value}


def convert(
    path: Path, out: Path, hop: Hop, table: FormatTable = FORMATS, *, verify: bool = False
) -> tuple[Held, set[str]]:
    """Convert and read back; also the words that were said to be dropped, each said once."""
    conversion = prepare_convert(path, out, hop.to, {**hop.options, "force": True}, table=table)
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(workers=1), overwrite=False, verify=verify)
    words = [dropped.what for dropped in conversion.target.dropped]
    assert len(set(words)) == len(words), words
    return Held.of(out, table), set(words)


def dropped_by(held: Held, hop: Hop) -> set[str]:
    """What `hop` must say that it drops of a checkpoint."""
    if hop.to in OF_WEIGHTS:
        return held.words
    if hop.to == "torch":
        loose = any(key.role == LOOSE for key in held.tensors)
        whole = all(map(_is_plain, held.training.client.values())) and not loose
        cannot = {"param16", "ds_config", "random state"}
        return held.words & (cannot | (set() if whole else {"client"}))
    if hop.to == "dcp":
        beside = {"lr_scheduler", "loss_scale", "steps", "ds_config", "client", "random state"}
        return held.words & {"param16", "buffer", "frozen", *beside}
    cannot = {"random state"}
    if any(key.role == LOOSE for key in held.tensors):
        cannot |= {"client"}
    if hop.to == "universal":
        if held.format not in ("deepspeed", "universal"):
            cannot |= {"lr_scheduler"} if not _is_deepspeeds(held.training.lr_scheduler) else set()
        return held.words & cannot
    cannot |= {"param16"} if hop.options["stage"] == 3 else set()
    if held.format != "deepspeed":
        cannot |= {"loss_scale"} if _precision(held, hop) != FLOAT16 else set()
        cannot |= {"lr_scheduler"} if not _is_deepspeeds(held.training.lr_scheduler) else set()
    return held.words & cannot


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | bytes)


def _is_deepspeeds(schedule: Any) -> bool:
    return isinstance(schedule, Mapping) and "last_batch_iteration" in schedule


def expected(held: Held, hop: Hop, dropped: set[str]) -> Held:
    """What must be there afterwards, under the role that the format has for it."""
    tensors: dict[Key, Array] = {}
    for key, values in held.tensors.items():
        if key.role == LOOSE and "client" in dropped:
            continue
        if key.role == "buffer" and "buffer" in dropped:
            tensors[Key(key.name, "param")] = values
        elif key.role in WEIGHTS or key.role not in dropped:
            tensors[key] = values
    if "aliases" in dropped and not held.config_ties:
        for alias, name in held.aliases.items():
            for role in WEIGHTS:
                if Key(name, role) in tensors:
                    tensors.setdefault(Key(alias, role), tensors[Key(name, role)])
    aliases = {} if "aliases" in dropped else held.aliases
    run = _run(held.training, dropped)
    if hop.to not in ("dcp", *OF_WEIGHTS):  # take values, though no tensors beside them
        client = held.training.client.items()
        kept = {name: each for name, each in client if hop.to != "torch" or _is_plain(each)}
        run = replace(run, client=kept)
    after = Held(hop.to, tensors, aliases, run)
    if hop.to == "deepspeed":
        return _in_deepspeed(after, held, hop)
    if hop.to == "universal":
        if not run.ds_config and run.precision == FLOAT32:  # may be that of masters alone
            after = replace(after, training=replace(run, precision=None))
        return replace(after, tensors=_begun(after.tensors, after, hop.options.get("stage")))
    weights = _most(tensors.values())
    if hop.to == "safetensors":  # says no more than its weights do
        return replace(after, training=replace(after.training, precision=weights))
    if hop.to in ("dcp", "orbax"):  # say it of 16-bit weights, which need no cast
        known = weights if weights != FLOAT32 else None
        return replace(after, training=replace(after.training, precision=known))
    return after


def _run(run: TrainingState, dropped: set[str]) -> TrainingState:
    nothing = TrainingState()
    fields = {
        "param_groups": ("groups", "optimizer"),
        "steps": ("steps", "skipped", "samples"),
        "loss_scale": ("loss_scaler",),
    }
    gone = [name for word in WORDS if word in dropped for name in fields.get(word, (word,))]
    scalars = {k: number for k, number in run.scalars.items() if k.role not in dropped}
    return replace(run, scalars=scalars, **{name: getattr(nothing, name) for name in gone})


def _in_deepspeed(after: Held, held: Held, hop: Hop) -> Held:
    """The model has weights of one type, and 16-bit copies of masters at stages 1 and 2."""
    precision = _precision(held, hop)
    tensors, run = dict(after.tensors), after.training
    if held.format != "deepspeed":
        tensors = _without_groups(after, hop, held.training.buffers)
        run = replace(run, precision=precision)
    if hop.options["stage"] != 3 and precision != FLOAT32:
        for name in _trained(held, hop):
            copy = tensors[Key(name, "param")].astype(numpy_dtype(precision))
            tensors.setdefault(Key(name, "param16"), copy)
    return replace(after, tensors=tensors, training=run)


def _without_groups(after: Held, hop: Hop, buffers: frozenset[str]) -> dict[Key, Array]:
    """What no optimizer has is frozen, or a buffer where it is not a float or known to be one;
    where there is no optimizer state, masters begin in fp32; a parameter that was never stepped has
    zeros beside others' state."""
    tensors: dict[Key, Array] = {}
    trained = _trained(after, hop)
    for key, values in after.tensors.items():
        if key.role == "param" and key.name in trained and not _roles(after):
            tensors[key] = values.astype(np.float32)
        elif key.role == "param" and (not is_float(values) or key.name in buffers):
            tensors[Key(key.name, "buffer")] = values
        else:
            tensors[key] = values
    return _begun(tensors, after)


def _begun(tensors: Mapping[Key, Array], after: Held, stage: int | None = None) -> dict[Key, Array]:
    """With zeros for state that its group has elsewhere; stage 3 of universal ones wants Adam's
    also before the first step."""
    filled, run = dict(tensors), after.training
    new = [key.name for key, values in tensors.items() if key.role == "param" and is_float(values)]
    for group in run.groups or (ParamGroup(tuple(new), {"betas": ()}),):
        for role in _roles(after):
            have = [name for name in group.params if Key(name, role) in tensors]
            for name in group.params if have else ():
                kind = tensors[Key(have[0], role)].dtype
                filled.setdefault(Key(name, role), np.zeros_like(tensors[Key(name, "param")], kind))
        if stage == 3 and not run.scalars and "betas" in group.options:
            for name in group.params:
                for role in ("exp_avg", "exp_avg_sq"):
                    blank = np.zeros_like(tensors[Key(name, "param")], np.float32)
                    filled[Key(name, role)] = blank
    return filled


def is_float(values: Array) -> bool:
    return values.dtype in {numpy_dtype(dtype) for dtype in (FLOAT32, BFLOAT16, FLOAT16)}


def _roles(held: Held) -> set[str]:
    """Of optimizer state in the shape of its parameter."""
    numbers = {key.role for key in held.training.scalars}
    return {key.role for key in held.tensors} - {*WEIGHTS, "param16"} - numbers


def _trained(held: Held, hop: Hop) -> set[str]:
    order: Path | None = hop.options.get("order")
    return held.trained if order is None else set(order.read_text().split())


def _precision(held: Held, hop: Hop) -> DType:
    config = hop.options.get("ds_config")
    if config is None:
        assert held.training.precision is not None
        return held.training.precision
    return next((dtype for word, dtype in PRECISIONS.items() if word in config), FLOAT32)


def _most(arrays: Iterable[Array]) -> DType | None:
    """The floating-point type that most bytes are in."""
    sizes = dict.fromkeys((FLOAT32, BFLOAT16, FLOAT16), 0)
    for values in arrays:
        for dtype in sizes:
            sizes[dtype] += values.nbytes if values.dtype == numpy_dtype(dtype) else 0
    most = max(sizes, key=sizes.__getitem__)
    return most if sizes[most] else None


def compare(found: Held, wanted: Held) -> None:
    """Every tensor of a dimension or more, byte for byte; every number by its value."""
    for key, values in wanted.tensors.items():
        if key in wanted.training.scalars:
            continue
        assert key in found.tensors, key
        there = found.tensors[key]
        assert (there.dtype, there.shape) == (values.dtype, values.shape), key
        assert there.tobytes() == values.tobytes(), key
    strange = found.tensors.keys() - wanted.tensors.keys() - found.training.scalars.keys()
    assert strange == set()
    assert found.aliases == wanted.aliases
    _compare_runs(found, wanted)


def _compare_runs(found: Held, wanted: Held) -> None:
    run, before = found.training, wanted.training
    if before.precision is not None:
        assert run.precision == before.precision
    for name in ("lr_scheduler", "loss_scale"):
        assert getattr(run, name) == getattr(before, name), name
    for name in ("steps", "skipped", "samples"):  # DeepSpeed has a number where none is known
        assert getattr(before, name) in (None, getattr(run, name)), name
    assert json_value(dict(run.client)) == json_value(dict(before.client))
    if before.ds_config is not None:
        assert run.ds_config is not None
    parameters = {key.name for key in found.tensors if key.role == "param"}
    assert run.frozen >= before.frozen & parameters
    numbers = {key: number.value for key, number in run.scalars.items()}
    assert numbers.items() >= {k: number.value for k, number in before.scalars.items()}.items()
    if before.groups:
        compare_groups(run, before)


def compare_groups(found: TrainingState, wanted: TrainingState) -> None:
    """The same names with the same options. A format may add the defaults of torch's class, leave
    out what only a kernel of DeepSpeed's needs, and join groups whose options are equal."""
    there, before = _options(found), _options(wanted)
    assert there.keys() == before.keys()
    for name, options in before.items():
        for option in options.keys() - OF_KERNELS:
            assert there[name][option] == options[option], (name, option)


def _options(run: TrainingState) -> dict[str, Mapping[str, Any]]:
    return {name: group.options for group in run.groups for name in group.params}
