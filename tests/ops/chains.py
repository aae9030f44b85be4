"""What a checkpoint should be after a conversion, said here once more and independently: which
words each format drops, and what becomes of tensors and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.formats.elements import elements
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from zerotools.core.training import TrainingState
from zerotools.io.arrays import Array, numpy_dtype
from zerotools.ops.convert import Conversion, perform
from zerotools.ops.tiles import Budget
from zerotools.ops.translate import prepare

WEIGHTS = ("param", "buffer")
STATE = (
    "param_groups", "lr_scheduler", "loss_scale", "steps", "ds_config", "client", "frozen",
)  # fmt: skip

OF_KERNELS = {"bias_correction", "step", "moe"}

# Words that a format has no room for; a role or word that is not there is not dropped either.
CANNOT: Mapping[str, set[str]] = {
    "torch": {"param16", "ds_config"},
    "safetensors": {"*"},
    "universal": {"random state"},
    "deepspeed": {"random state"},
    "dcp": {
        "param16", "aliases", "buffer", "frozen", "lr_scheduler", "loss_scale", "steps",
        "ds_config", "client", "random state",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Hop:
    """One conversion: a target and its options."""

    to: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.to, *(f"{name}={value}" for name, value in self.options.items())])


@dataclass(frozen=True)
class Held:
    """All that a checkpoint holds: the bytes of every tensor, tied names, and the run."""

    tensors: Mapping[Key, Array]
    aliases: Mapping[str, str]
    training: TrainingState

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Held:
        tensors = {key: elements(checkpoint, key) for key in checkpoint.tensors}
        return cls(tensors, checkpoint.aliases, formats.training_of(checkpoint))

    @property
    def words(self) -> set[str]:
        """Every role and part of the run that is there."""
        run = self.training
        counters = (run.steps, run.skipped, run.samples)
        there = {
            "param_groups": run.groups,
            "lr_scheduler": run.lr_scheduler,
            "loss_scale": run.loss_scale,
            "steps": any(number is not None for number in counters),
            "ds_config": run.ds_config,
            "client": run.client,
            "frozen": run.frozen,
            "aliases": self.aliases,
        }
        roles = {key.role for key in (*self.tensors, *run.scalars)} - {"param"}
        return roles | {word for word, value in there.items() if value}


def convert(path: Path, out: Path, hop: Hop) -> tuple[Held, set[str]]:
    """Convert and read back; also the words that were said to be dropped, each said once."""
    conversion = prepare(path, out, hop.to, hop.options)
    assert isinstance(conversion, Conversion)
    perform(conversion, budget=Budget(workers=1), overwrite=False)
    words = [dropped.what for dropped in conversion.target.dropped]
    assert len(set(words)) == len(words), words
    return Held.of(formats.read(out)), set(words)


def expected_drops(held: Held, hop: Hop) -> set[str]:
    """What `hop` must say that it drops of a checkpoint."""
    cannot = CANNOT[hop.to]
    return held.words if "*" in cannot else held.words & cannot


def expected(held: Held, hop: Hop, dropped: set[str]) -> Held:
    """What must be there afterwards."""
    tensors = {}
    for key, values in held.tensors.items():
        if key.role == "buffer" and "buffer" in dropped:
            tensors[Key(key.name, "param")] = values
        elif key.role in WEIGHTS or key.role not in dropped:
            tensors[key] = values
    if "aliases" in dropped:
        for alias, name in held.aliases.items():
            for role in WEIGHTS:
                if Key(name, role) in tensors:
                    tensors.setdefault(Key(alias, role), tensors[Key(name, role)])
    aliases = {} if "aliases" in dropped else held.aliases
    run = _run(held.training, dropped)
    weights = _widest(tensors.values())
    if hop.to == "safetensors":  # says no more than its weights do
        run = replace(run, precision=weights)
    if hop.to == "dcp":  # says it of 16-bit weights, which need no cast
        run = replace(run, precision=weights if weights != FLOAT32 else None)
    return Held(tensors, aliases, run)


def _widest(arrays: Iterable[Array]) -> DType | None:
    """The floating-point type that most bytes are in."""
    sizes: dict[DType, int] = {}
    for dtype in (FLOAT32, BFLOAT16, FLOAT16):
        same = [values.nbytes for values in arrays if values.dtype == numpy_dtype(dtype)]
        sizes[dtype] = sum(same)
    widest = max(sizes, key=sizes.__getitem__)
    return widest if sizes[widest] else None


def _run(run: TrainingState, dropped: set[str]) -> TrainingState:
    nothing = TrainingState()
    fields = {"param_groups": ("groups", "optimizer"), "steps": ("steps", "skipped", "samples")}
    gone = [name for word in STATE if word in dropped for name in fields.get(word, (word,))]
    scalars = {key: number for key, number in run.scalars.items() if key.role not in dropped}
    return replace(run, scalars=scalars, **{name: getattr(nothing, name) for name in gone})


def compare(found: Held, wanted: Held) -> None:
    """Every tensor of a dimension or more, byte for byte; every number by its value."""
    for key, values in wanted.tensors.items():
        if key in wanted.training.scalars:
            continue
        assert key in found.tensors, key
        there = found.tensors[key]
        assert (there.dtype, there.shape) == (values.dtype, values.shape), key
        assert there.tobytes() == values.tobytes(), key
    strange = found.tensors.keys() - wanted.tensors.keys() - wanted.training.scalars.keys()
    assert strange == set()
    assert found.aliases == wanted.aliases
    assert _numbers(found.training) == _numbers(wanted.training)
    if wanted.training.precision is not None:
        assert found.training.precision == wanted.training.precision
    for name in ("frozen", "lr_scheduler", "loss_scale", "ds_config"):
        assert getattr(found.training, name) == getattr(wanted.training, name), name
    for name in ("steps", "skipped", "samples"):
        assert getattr(found.training, name) == getattr(wanted.training, name), name
    assert dict(found.training.client) == dict(wanted.training.client)
    compare_groups(found.training, wanted.training)


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


def _numbers(run: TrainingState) -> dict[Key, float]:
    return {key: number.value for key, number in run.scalars.items()}
