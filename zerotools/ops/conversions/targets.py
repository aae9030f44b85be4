"""The formats that `convert` writes: what each is called, which options it takes, how it is laid
out. Formats are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Dropped, Target
from zerotools.core.dropping import extra_roles, state_words
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadRequest
from zerotools.core.training import TrainingState
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings
from zerotools.ops.conversions.consolidate import DEFAULT_MAX_SHARD_BYTES, DTYPES, cast_dtype
from zerotools.ops.conversions.optimizer_options import NAMES
from zerotools.ops.weights.rewrite import describe
from zerotools.ops.weights.selection import (
    MASTERS,
    SIXTEEN_BIT,
    choose_names,
    matcher,
    weights_from,
)
from zerotools.ops.weights.tied_weights import resolve_aliases

KEEP = "keep"
STYLES = ("torch", "accelerate", "torchtitan")
ZERO = ("stage", "sub_group_size", "round_robin", "ds_config")


@dataclass(frozen=True)
class ConversionRequest:
    """One conversion: the source, what is known of its run, where to, and the options that were
    given, by name."""

    source: Checkpoint
    training: TrainingState
    destination: Path
    options: Mapping[str, Any]

    def world_size(self) -> int:
        """The ranks to write for: as asked, else as many as the source has.

        Raises:
            BadRequest: neither says a number.
        """
        asked = self.options.get("world_size", self.source.origin.world_size)
        if asked is None:
            raise BadRequest(
                f"{self.source.origin.path} does not say for how many ranks it was saved: pass "
                "--world-size"
            )
        return int(asked)


@dataclass(frozen=True)
class OutputFormat:
    """`word` is what the user calls it, `origin` what a reader does. `options` are the names of
    those that apply, besides what every target takes. `holds_state` is False where the format has
    no place for an optimizer, `says_weights` True where its writer says itself if there is none.
    `reshards` says that a source of the same format is resharded instead."""

    word: str
    origin: str
    lay_out: Callable[[ConversionRequest], Target]
    options: frozenset[str] = field(default_factory=frozenset)
    holds_state: bool = True
    says_weights: bool = False
    reshards: bool = False


def settings_of(options: Mapping[str, Any]) -> ZeroSettings:
    """The ZeRO settings among the options."""
    return ZeroSettings(**{name: options[name] for name in ZERO if name in options})


def _deepspeed(wanted: ConversionRequest) -> Target:
    from zerotools.formats.deepspeed.writing.lay_out_other_format import lay_out_foreign

    return lay_out_foreign(
        wanted.source,
        wanted.training,
        wanted.destination,
        world_size=wanted.world_size(),
        settings=settings_of(wanted.options),
    )


def _universal(wanted: ConversionRequest) -> Target:
    from zerotools.formats.deepspeed.universal.lay_out import lay_out_universal

    return lay_out_universal(
        wanted.source,
        wanted.training,
        wanted.destination,
        stage=wanted.options.get("stage"),
    )


def _dcp(wanted: ConversionRequest) -> Target:
    from zerotools.formats.dcp.writing.lay_out_other_format import lay_out_training

    return lay_out_training(
        wanted.source,
        wanted.training,
        wanted.destination,
        world_size=wanted.world_size(),
        style=wanted.options.get("style", "torch"),
    )


def _torch(wanted: ConversionRequest) -> Target:
    from zerotools.formats.torchfile.writing.lay_out_other_format import lay_out_training

    return lay_out_training(wanted.source, wanted.training, wanted.destination)


def _safetensors(wanted: ConversionRequest) -> Target:
    """The weights alone: masters, as they are unless another type was asked for."""
    from zerotools.formats import safetensors

    source, asked = wanted.source, wanted.options.get("dtype", KEEP)
    chosen = choose_names(weights_from(source, MASTERS), matcher((), ()))
    weights, notes = resolve_aliases(chosen)
    if asked != KEEP:
        described = describe(weights, lambda _, tensor: cast_dtype(tensor, DTYPES[asked]))
    else:
        described = describe(weights, lambda _, tensor: tensor.dtype)
    most = wanted.options.get("max_shard_bytes", DEFAULT_MAX_SHARD_BYTES)
    target = safetensors.lay_out(described, wanted.destination, max_shard_bytes=most)
    if asked == KEEP:
        notes += _masters_note(wanted, described)
    own = {key: t for key, t in weights.tensors.items() if source.tensors.get(key) is not t}
    dropped = (*_beside_weights(wanted), *_told_no_more(chosen, source))
    return replace(target, notes=(*target.notes, *notes), sources=own, dropped=dropped)


def _masters_note(wanted: ConversionRequest, written: Checkpoint) -> list[str]:
    precision = wanted.training.precision
    wide = any(tensor.dtype == FLOAT32 for tensor in written.tensors.values())
    word = next((word for word, dtype in DTYPES.items() if dtype == precision), None)
    if word is None or precision not in SIXTEEN_BIT or not wide:
        return []
    return [
        f"the weights are the fp32 masters, unchanged; --dtype {word} writes the type that the "
        "run computes in"
    ]


def _beside_weights(wanted: ConversionRequest) -> list[Dropped]:
    found = []
    for what in (
        *extra_roles(wanted.source, wanted.training),
        *state_words(wanted.source, wanted.training),
    ):
        if what == "param16":
            why = "the weights are written from the masters, of which these are casts"
        elif what == "frozen":
            why = "safetensors does not say which weights were frozen"
        else:
            why = "safetensors holds weights only"
        found.append(Dropped(what, why))
    return found


def _told_no_more(weights: Checkpoint, source: Checkpoint) -> list[Dropped]:
    found = []
    if any(key.role == "buffer" for key in source.tensors):
        found.append(Dropped("buffer", "kept, but no longer marked as buffers"))
    if weights.aliases:
        found.append(Dropped("aliases", "safetensors does not say which names are tied"))
    return found


_TARGETS = (
    OutputFormat(
        "deepspeed",
        "deepspeed",
        _deepspeed,
        frozenset({"world_size", "order", *ZERO, *NAMES}),
        reshards=True,
    ),
    OutputFormat("universal", "universal", _universal, frozenset({"stage", *NAMES})),
    OutputFormat(
        "dcp",
        "dcp",
        _dcp,
        frozenset({"world_size", "style", *NAMES}),
        says_weights=True,
        reshards=True,
    ),
    OutputFormat(
        "safetensors",
        "safetensors",
        _safetensors,
        frozenset({"dtype", "max_shard_bytes"}),
        holds_state=False,
    ),
    OutputFormat("torch", "torchfile", _torch, frozenset(NAMES)),
)
TARGETS: Mapping[str, OutputFormat] = {target.word: target for target in _TARGETS}
