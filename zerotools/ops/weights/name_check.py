"""Compare the names and shapes in an export with those of the model that its config.json describes.

zerotools knows the names of common model families. For other families, or if the names do not fit,
transformers tries to load tensors with these names and shapes, if it is installed
(`try_transformers_load`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from zerotools.core.adapter_tensor_names import is_adapter_checkpoint
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.linear_time_regex import exclusion_patterns
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.config_json import LARGEST_CONFIG, ties_embeddings
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.maps.detect_layout import detect_layout
from zerotools.maps.expression_views import Shape
from zerotools.maps.hub_tensor_names import NameFaults, names_of_model
from zerotools.maps.map_file import HUB
from zerotools.maps.transformers_names import MEMORY, prefix_map_of
from zerotools.ops.quantised.find_quantised import find_quantised
from zerotools.ops.weights.match_names_to_layout import shapes_of
from zerotools.ops.weights.merged_config import merged_tree
from zerotools.ops.weights.model_to_match import Reference
from zerotools.ops.weights.select_and_rename import rename_tensors
from zerotools.ops.weights.try_transformers_load import Unbuildable, trial_loads
from zerotools.ops.weights.unwrap_names import WRAPPERS, Unwrapping, possible_namings

_MOST_NAMED = 3
_MOST_PATTERNS = 8
_OF_ADAPTERS = (".lora_", ".base_layer.")
# Layers after the last block, in classes for other tasks than language modelling.
_OF_TASK = re.compile(r"(?:.*\.)?(?:score|classifier|classification_head|qa_outputs)\..*")


@dataclass(frozen=True)
class Fits:
    """The result if the names fit the model, after changes: `naming` removes parts of names, then
    `renamed` replaces whole names.

    Attributes:
        ties: name of a tied tensor -> name of the tensor with its values.
        lost: the names of weights that the model needs but the user left out.
        copies: name that the checkpoint lacks -> name of the tensor with its values, for a model
            that a merged adapter has untied.
        layout: the layout that the tensors have in the memory of transformers; None if they have
            the layout of the Hub.
    """

    naming: Unwrapping
    renamed: Mapping[str, str] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    layout: str | None = None

    def new_name(self, name: str) -> str:
        """Return the model's name for the tensor `name`."""
        new = self.naming.new_name(name)
        return self.renamed.get(new, new)

    @property
    def notes(self) -> list[str]:
        """Sentences about the names that change."""
        said = []
        if self.naming.removed:
            parts = " and ".join(dict.fromkeys(self.naming.removed))
            said.append(f"removed {parts} from the names, to match the model of {CONFIG}")
        said += [
            f"{old} is written as {new}: the model of {CONFIG} ties the two"
            for old, new in self.renamed.items()
        ]
        if self.layout is not None:
            said.append(
                f"the weights have the layout {self.layout}, which transformers 5 has in memory; "
                "zerotools consolidate --map-to hf writes that of the Hub, for vLLM and llama.cpp"
            )
        if self.lost:
            said.append(
                f"--include/--exclude leave out {count_text(len(self.lost), 'weight')} that the "
                f"model of {CONFIG} needs ({_some(self.lost)})"
            )
        return said


@dataclass(frozen=True)
class Misses:
    """The result if the names do not fit the model. transformers would fill missing tensors with
    random numbers, and ignore unexpected ones. `advice` names the option that corrects the names.
    """

    faults: NameFaults
    advice: str

    @property
    def message(self) -> str:
        """The differences in words: counts, and three names of each kind."""
        faults, said = self.faults, []
        if faults.missing:
            said.append(f"{_tensors(faults.missing)} missing ({_some(faults.missing)})")
        if faults.unexpected:
            said.append(f"{_tensors(faults.unexpected)} unexpected ({_some(faults.unexpected)})")
        if faults.wrong:
            shapes = [f"{n} is {list(a)}, not {list(b)}" for n, a, b in faults.wrong]
            said.append(f"{_tensors(faults.wrong)} of another shape ({_some(shapes)})")
        return ", ".join(said)


@dataclass(frozen=True)
class NotChecked:
    """The result if the names could not be compared. `why` is the reason, as a part of a
    sentence."""

    why: str

    @property
    def note(self) -> str:
        """The reason as a whole sentence."""
        return f"the names were not compared with {CONFIG}: {self.why}"


class Knowledge(Protocol):
    """The names and shapes of a model's tensors, as far as they are known."""

    @property
    def ties(self) -> Mapping[str, str]:
        """The tied tensors of the model: name -> name of the tensor with its values."""

    def faults_of(self, held: Mapping[str, Shape]) -> NameFaults:
        """Return the differences between the tensors `held` and the model."""


def fit_to_config(
    held: Mapping[str, Shape],
    left_out: Mapping[str, Shape],
    config: Mapping[str, Any],
    advise: Callable[[NameFaults], str] = lambda _: "",
    *,
    is_partial: bool = False,
) -> Fits | Misses | NotChecked:
    """Compare the tensors `held` with the model of `config`. Tensors in `left_out`, which the user
    does not want, do not count as missing. With `is_partial` no tensor does. `advise` returns the
    advice for `Misses`."""
    every = {**left_out, **held}
    namings = list(possible_namings(every))
    known = names_of_model(config, is_tied=ties_embeddings(config))
    own: NameFaults | None = None
    if known is not None:
        # A size that is not a number is left to transformers.
        with suppress(BadRequest):
            fits, own = fit_of(known, namings, every, left_out, is_partial=is_partial)
            if fits is not None:
                return fits
    if not isinstance(config.get("model_type"), str):
        return NotChecked("it has no model_type")
    own_code = NotChecked("it names extra code (auto_map), which is not run")
    try:
        judged = trial_loads(config, [_named(every, naming) for naming in namings])
    except Unsupported as error:
        return NotChecked(str(error)) if own is None else Misses(own, advise(own))
    except Unbuildable:
        if config.get("auto_map"):
            return own_code
        raise
    nearest: NameFaults | None = None
    for naming, trial in zip(namings, judged, strict=True):
        faults = _wanted(trial.faults, naming, every, left_out, is_partial=is_partial)
        if not faults.count:
            lost = _lost(trial.faults, naming, held, left_out, trial.ties)
            layout = _layout_in_memory(_named(every, naming), config)
            return Fits(naming, trial.renamed, trial.ties, lost, layout=layout)
        if nearest is None or faults.count < nearest.count:
            nearest = faults
    if config.get("auto_map"):
        return own_code
    faults = min((each for each in (own, nearest) if each is not None), key=_count)
    return Misses(faults, advise(faults))


def fit_of(
    known: Knowledge,
    namings: Sequence[Unwrapping],
    every: Mapping[str, Shape],
    left_out: Mapping[str, Shape],
    *,
    is_partial: bool = False,
) -> tuple[Fits | None, NameFaults]:
    """Try each of the renaming rules `namings`. Return the result for the first rule that gives the
    tensors the model's names (None: no rule does), and the faults of the best rule. With
    `is_partial` a missing tensor is not a fault."""
    tried: list[NameFaults] = []
    ties = known.ties
    for naming in namings:
        names = _named(every, naming)
        renamed = {
            name: source for name, source in ties.items() if name in names and source not in names
        }
        names = {renamed.get(name, name): shape for name, shape in names.items()}
        found = known.faults_of(names)
        faults = _wanted(found, naming, every, left_out, is_partial=is_partial)
        if not faults.count:
            held = [name for name in every if name not in left_out]
            lost = _lost(found, naming, held, left_out, ties)
            return Fits(naming, renamed, ties, lost, layout=found.layout), faults
        tried.append(faults)
    return None, min(tried, key=_count)


def _count(faults: NameFaults) -> int:
    return faults.count


def _named(every: Mapping[str, Shape], naming: Unwrapping) -> dict[str, Shape]:
    return {naming.new_name(name): shape for name, shape in every.items()}


def _wanted(
    faults: NameFaults,
    naming: Unwrapping,
    every: Mapping[str, Shape],
    left_out: Mapping[str, Shape],
    *,
    is_partial: bool,
) -> NameFaults:
    """Return the faults under the names in the checkpoint, without those of tensors that the user
    left out."""
    own = {naming.new_name(name): name for name in every}
    missing = () if is_partial else faults.missing
    unexpected = (own.get(name, name) for name in faults.unexpected)
    wrong = ((own.get(name, name), there, needed) for name, there, needed in faults.wrong)
    return NameFaults(
        missing,
        tuple(name for name in unexpected if name not in left_out),
        tuple(each for each in wrong if each[0] not in left_out),
    )


def _lost(
    faults: NameFaults,
    naming: Unwrapping,
    held: Collection[str],
    left_out: Collection[str],
    ties: Mapping[str, str],
) -> tuple[str, ...]:
    """Return the names of weights that the model needs and the user left out, except weights that
    are tied to one in the output. `faults` are the faults of all tensors."""
    there = {naming.new_name(name) for name in held}
    spare = {*faults.unexpected, *(name for name, source in ties.items() if source in there)}
    spare |= {source for name, source in ties.items() if name in there}
    return tuple(name for name in left_out if naming.new_name(name) not in spare)


def _tree(path: Path) -> Mapping[str, Any] | None:
    """Return the JSON object in the file; None if it cannot be read or is no object."""
    try:
        tree: Any = read_json(path, LARGEST_CONFIG)
    except (OSError, BadFile, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def check_names(
    every: Checkpoint,
    weights: Checkpoint,
    command: str = "consolidate",
    *,
    is_merged: bool = False,
    lost: Collection[str] | None = (),
) -> Fits | NotChecked | None:
    """Check the names of `weights`, a selection of the checkpoint `every`, against the model in the
    checkpoint's config.json. `lost` are the names of weights that the checkpoint has lost; None if
    they are not known. A tied tensor counts once for each of its names.

    Return None if there is no config.json, or for an adapter.

    Raises:
        BadRequest: the names do not fit. The message has counts, examples and the option that
            corrects them.
    """
    path = weights.model_sidecars.get(CONFIG)
    if path is None or is_adapter_checkpoint(weights.tensors):
        return None
    base = config = _tree(path)
    if base is None or config is None:
        return NotChecked(f"{path} is not a JSON object that can be read")
    if is_merged:
        config, _ = merged_tree(base, every)
    held = values_of(weights)
    if isinstance(held, NotChecked):
        return held
    whole = _shapes(values_of(every))
    left_out = {name: shape for name, shape in whole.items() if name not in held}
    left_out |= {name: () for name in lost or () if name not in held and name not in left_out}
    where = f"the {config.get('model_type')} model of {path}"
    keeps = "write the names unchanged with --no-check-names"
    try:
        found = fit_to_config(
            held,
            left_out,
            config,
            lambda faults: _advice(faults, held, config, command),
            is_partial=lost is None,
        )
        if is_merged and isinstance(found, Misses):
            found = _with_copies(found, held, left_out, config, base)
    except Unbuildable as error:
        raise BadRequest(
            f"transformers cannot build {where} ({error}); correct {CONFIG}, give another one with "
            f"--config-dir DIR, or {keeps}"
        ) from None
    if isinstance(found, NotChecked):
        return NotChecked(f"{found.why}{_wrapped(whole)}")
    if isinstance(found, Fits):
        return found
    if _is_turned(found.faults, weights):
        return NotChecked("quantised weights have their dimensions in another order")
    raise BadRequest(
        f"{weights.origin.path} does not fit {where}: {found.message}; {found.advice}, or {keeps}"
    )


def _with_copies(
    misses: Misses,
    held: Mapping[str, Shape],
    left_out: Mapping[str, Shape],
    config: Mapping[str, Any],
    base: Mapping[str, Any],
) -> Fits | Misses:
    """Return the result for a merged model that also has each weight that only the config of its
    base model ties. `config` is the config of the merged model, and `base` that of its base."""
    faults = misses.faults
    if faults.unexpected or faults.wrong or ties_embeddings(config) == ties_embeddings(base):
        return misses
    tied = fit_to_config(held, left_out, base)
    if not isinstance(tied, Fits):
        return misses
    held_names = {tied.new_name(name) for name in held}
    copies = {name: tied.ties[name] for name in faults.missing if tied.ties.get(name) in held_names}
    return replace(tied, ties={}, copies=copies) if len(copies) == len(faults.missing) else misses


def _wrapped(names: Iterable[str]) -> str:
    """Return a phrase with the option that removes a wrapper's prefix from all names. Return "" if
    the names do not all begin with the same prefix of a wrapper."""
    words = [list(takewhile(WRAPPERS.__contains__, name.split(".")[:-1])) for name in names]
    shared = min(words, key=len, default=[])
    if not shared or any(each[: len(shared)] != shared for each in words):
        return ""
    prefix = ".".join(shared) + "."
    return (
        f"; all names begin with {prefix}, which a wrapper adds: --strip-prefix {prefix} removes it"
    )


def _is_turned(faults: NameFaults, weights: Checkpoint) -> bool:
    """Return whether the only faults are quantised weights with their dimensions in another order,
    as in gpt-oss."""
    if faults.missing or faults.unexpected:
        return False
    packed = {key.name for key in find_quantised(weights).weights}
    return all(name in packed and sorted(a) == sorted(b) for name, a, b in faults.wrong)


def _shapes(found: Mapping[str, Shape] | NotChecked) -> Mapping[str, Shape]:
    return {} if isinstance(found, NotChecked) else found


def values_of(weights: Checkpoint) -> dict[str, Shape] | NotChecked:
    """Return the shapes of all weights, keyed by name. A quantised weight has its dequantised
    shape."""
    shapes = shapes_of(weights)
    found = find_quantised(weights)
    if found.is_there:
        error = found.error()
        if error is not None:
            return NotChecked(str(error))
        for each in found.weights.values():
            for key in (*each.parts, *each.extra_keys):
                shapes.pop(key.name, None)
            shapes[each.key.name] = each.tensor.shape
        for key in found.activations:
            shapes.pop(key.name, None)
    return _with_aliases(weights, shapes)


def _with_aliases(weights: Checkpoint, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    tied = {alias: shapes[name] for alias, name in weights.aliases.items() if name in shapes}
    return {**tied, **shapes}


@dataclass(frozen=True)
class FittedWeights:
    """Weights under the names of their model.

    `ties` are those of `Fits`; None if they are not known. `new_name` converts a name in the
    checkpoint to that in the model.
    """

    weights: Checkpoint
    ties: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    new_name: Callable[[str], str] = str


def named_for_model(
    every: Checkpoint,
    weights: Checkpoint,
    like: Reference | None,
    *,
    is_checked: bool,
    is_merged: bool = False,
    command: str = "consolidate",
    lost: Collection[str] | None = (),
) -> FittedWeights:
    """Give `weights`, a selection of the checkpoint `every`, the names of their model. The model is
    `like`; None: the one that config.json describes.

    If `is_checked` is False and `like` is None, the weights keep their names. `is_merged` says that
    an adapter was merged into the weights, and that config.json is that of the base model. `lost`
    is as in `check_names`.

    Raises:
        BadRequest: the weights do not fit config.json.
    """
    if like is not None:
        found, _ = fit_of(
            _LikeNames(like),
            list(possible_namings([*(key.name for key in weights.tensors), *weights.aliases])),
            _with_aliases(weights, shapes_of(weights)),
            {},
        )
        return FittedWeights(weights if found is None else rename_tensors(weights, found.new_name))
    if not is_checked:
        return FittedWeights(weights)
    checked = check_names(every, weights, command, is_merged=is_merged, lost=lost)
    if checked is None:
        return FittedWeights(weights)
    if isinstance(checked, NotChecked):
        return FittedWeights(weights, notes=(checked.note,))
    if lost is None or lost:  # those are reported elsewhere
        checked = replace(checked, lost=())
    named = rename_tensors(weights, checked.new_name)
    named = replace(named, aliases={**named.aliases, **checked.copies})
    return FittedWeights(named, checked.ties, tuple(checked.notes), checked.new_name)


@dataclass(frozen=True)
class _LikeNames:
    """The names of another model that an export must match. Only missing names count as faults
    here: `check_against` makes the other comparisons."""

    like: Reference
    ties: Mapping[str, str] = field(default_factory=dict)

    def faults_of(self, held: Mapping[str, Shape]) -> NameFaults:
        needed = self.like.tensors
        return NameFaults(tuple(name for name in needed if name not in held))


def _advice(
    faults: NameFaults, held: Mapping[str, Shape], config: Mapping[str, Any], command: str
) -> str:
    """Return a phrase for a message with the option that corrects the faults."""
    if any(mark in name for name in faults.unexpected for mark in _OF_ADAPTERS):
        return _adapter_advice(held)
    other = _other_layout(held, config)
    by = "" if command == "consolidate" else "zerotools consolidate "
    if other is not None:
        return f"they have the layout {other}: pass --map-to {HUB}"
    if command == "gather" and faults.missing and not faults.unexpected:
        return "also name the source that has these tensors"
    given = f"give the {CONFIG} of this model with --config-dir DIR"
    of_task = next((name for name in faults.unexpected if _OF_TASK.fullmatch(name)), None)
    if of_task is not None:
        return f"{given} (architectures names a class without {of_task})"
    if faults.unexpected and not faults.missing and not faults.wrong:
        return _without(faults.unexpected, held, by)
    if not faults.missing:
        return given
    whole = f"take a complete checkpoint, {given}"
    return f"rename them with {by}--rename REGEX=REPL, {whole}" if faults.unexpected else whole


def _adapter_advice(held: Collection[str]) -> str:
    """Return the advice for a run with an adapter that was not merged. It has --base only if the
    run does not contain its base model."""
    base = "" if any(".base_layer." in name for name in held) else " --base DIR"
    return (
        f"they belong to an adapter: merge it with zerotools consolidate{base}, or export it with "
        "--adapter-only"
    )


def _layout_in_memory(held: Mapping[str, Shape], config: Mapping[str, Any]) -> str | None:
    """Return the name of the layout that the tensors in `held` have. Return None if it is the
    layout of the Hub, or if the layout is unknown."""
    prefixes = prefix_map_of(config)
    if prefixes is not None and any(prefixes.renamed(name, HUB) != name for name in held):
        return MEMORY
    return _other_layout(held, config)


def _other_layout(held: Mapping[str, Shape], config: Mapping[str, Any]) -> str | None:
    known = names_of_model(config, is_tied=ties_embeddings(config))
    if known is None or not known.family.layouts:
        return None
    try:
        found = detect_layout(known.family, known.config, {}, held)
    except BadRequest:
        return None
    return None if found.layout.name == HUB else found.layout.name


def _without(unexpected: Sequence[str], held: Collection[str], by: str) -> str:
    """Return a phrase with the `--exclude` options that match all names in `unexpected` and no
    other names in `held`. `by` is the text before the options."""
    it = "it" if len(unexpected) == 1 else "them"
    spare = set(unexpected)
    patterns = exclusion_patterns(unexpected, [name for name in held if name not in spare])
    if len(patterns) > _MOST_PATTERNS:
        return f"leave {it} out with {by}--exclude NAME for each name"
    options = " ".join(f"--exclude {shlex.quote(pattern)}" for pattern in patterns)
    return f"leave {it} out with {by}{options}"


def _tensors(names: Sequence[object]) -> str:
    return count_text(len(names), "tensor")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
