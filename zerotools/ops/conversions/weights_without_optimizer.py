"""Choose the weights that `convert` writes to a format without optimizer state, and note what is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import FLOAT32
from zerotools.core.target import Dropped, Target, extra_roles, state_words
from zerotools.core.training_state import TrainingState
from zerotools.formats import FormatTable
from zerotools.formats.format import Format
from zerotools.ops.conversions.consolidate import DTYPES, cast_types, choose_dtype, kept_note
from zerotools.ops.conversions.merged_model import MergedModel
from zerotools.ops.conversions.quantised_export import (
    AUTO,
    KEEP,
    quantise_and_describe,
    with_quantised_config,
)
from zerotools.ops.quantised.quantise import QUANTISERS, Quantised
from zerotools.ops.quantised.quantised_weights import Quantisation
from zerotools.ops.weights.name_check import named_for_model
from zerotools.ops.weights.restore_hub_layout import (
    hub_layout_of,
    keys_on_hub,
    on_hub_note,
    restore_hub_layout,
)
from zerotools.ops.weights.select_and_rename import (
    MASTERS,
    SIXTEEN_BIT,
    choose_names,
    describe_output,
    name_matcher,
    weights_from,
)
from zerotools.ops.weights.tied_weights import resolve_aliases


@dataclass(frozen=True)
class WeightsAlone:
    """The weights for a format without optimizer state.

    `weights` have the dtypes of the source, and `described` are the same weights with the dtypes of
    the output. `keys` is key of the source -> its keys in the output, if they differ. `found` is
    the quantisation of the source. `made` is the result of quantising the weights for the output;
    None if they are not quantised.
    """

    described: Checkpoint
    weights: Checkpoint
    notes: list[str]
    dropped: list[Dropped]
    keys: dict[Key, tuple[Key, ...]]
    dtype: str
    found: Quantisation
    made: Quantised | None = None

    def configured(self, target: Target) -> Target:
        """Return `target` with a config.json that describes the quantisation of its weights."""
        return with_quantised_config(target, self.weights, self.found, self.made, self.dtype)

    def new_sources(self, source: Checkpoint) -> dict[Key, Tensor]:
        """Return the weights that the source does not have under the same key."""
        held = self.weights.tensors.items()
        return {key: tensor for key, tensor in held if source.tensors.get(key) is not tensor}


def weights_alone(
    source: Checkpoint,
    training: TrainingState,
    form: Format,
    dtype: str,
    table: FormatTable,
    found: Quantisation,
    *,
    is_checked: bool,
    model: MergedModel,
) -> WeightsAlone:
    """Return the weights of `source` for a format without optimizer state.

    `model` says how adapters were merged into `source`. `dtype` is a key of `DTYPES` (a cast), a
    key of `QUANTISERS` (quantised weights), or `KEEP` (unchanged). `found` is the quantisation of
    the source. With `is_checked`, names that the model in config.json does not have are refused.

    Raises:
        BadRequest: `source` has no weights, or they do not fit config.json.
    """
    held, layout = weights_from(source, MASTERS), hub_layout_of(source, table)
    chosen = choose_names(restore_hub_layout(held, layout), name_matcher((), ()))
    fitting = named_for_model(
        chosen, chosen, None, is_checked=is_checked, is_merged=model.is_merged, command="convert"
    )
    weights, said = resolve_aliases(fitting.weights, ties=fitting.ties)
    keys = _keys_of(keys_on_hub(held, layout), chosen, weights)
    notes = [*on_hub_note(layout), *fitting.notes, *said]
    made = None
    if dtype in QUANTISERS:
        rest, why = choose_dtype(source, AUTO)
        notes += [why] if why else []
        described = describe_output(weights, cast_types(weights, rest))
        made, described = quantise_and_describe(weights, described, found, dtype)
        weights = made.weights
    elif dtype == KEEP:
        described = describe_output(weights, lambda _, tensor: model.kept_dtype(tensor))
        notes += _masters_note(training, described)
    else:
        described = describe_output(weights, cast_types(weights, DTYPES[dtype]))
        notes += kept_note(described, DTYPES[dtype])
    dropped = [*_beside_weights(source, training, form), *_no_longer_reported(chosen, source, form)]
    return WeightsAlone(described, weights, notes, dropped, keys, dtype, found, made)


def _keys_of(
    on_hub: dict[Key, tuple[Key, ...]], chosen: Checkpoint, weights: Checkpoint
) -> dict[Key, tuple[Key, ...]]:
    """Return {key of the source: its keys in the output} for all keys that differ.

    `chosen` has the tensors before the last renaming, and `weights` the same tensors after it.
    `on_hub` is key of the source -> its keys in `chosen`, if the layout was changed to that of the
    Hub.
    """
    new_keys = {id(tensor): key for key, tensor in weights.tensors.items()}
    moved = {key: new_keys.get(id(tensor), key) for key, tensor in chosen.tensors.items()}
    moved = {key: new for key, new in moved.items() if key != new and key not in weights.tensors}
    found = {key: tuple(moved.get(each, each) for each in keys) for key, keys in on_hub.items()}
    return {**{key: (new,) for key, new in moved.items()}, **found}


def _masters_note(training: TrainingState, written: Checkpoint) -> list[str]:
    precision = training.precision
    wide = any(tensor.dtype == FLOAT32 for tensor in written.tensors.values())
    word = next((word for word, dtype in DTYPES.items() if dtype == precision), None)
    if word is None or precision not in SIXTEEN_BIT or not wide:
        return []
    return [
        f"the weights are the fp32 masters, unchanged; --dtype {word} writes the type that the "
        "run computes in"
    ]


def _beside_weights(source: Checkpoint, training: TrainingState, form: Format) -> list[Dropped]:
    found = []
    for what in (*extra_roles(source, training), *state_words(source, training)):
        if what == "param16":
            why = "these are casts of the masters, which are written as the weights"
        elif what == "frozen":
            why = f"{form.title} does not record which weights were frozen"
        else:
            why = f"only weights are written to {form.title}"
        found.append(Dropped(what, why))
    return found


def _no_longer_reported(weights: Checkpoint, source: Checkpoint, form: Format) -> list[Dropped]:
    found = []
    if any(key.role == "buffer" for key in source.tensors):
        found.append(Dropped("buffer", "the tensors are kept, but no longer marked as buffers"))
    if weights.aliases:
        found.append(Dropped("aliases", f"{form.title} does not record which names are tied"))
    return found
