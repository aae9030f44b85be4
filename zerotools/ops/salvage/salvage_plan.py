"""Plan the export of a damaged checkpoint: the weights to write, each with its sources, and the
weights to leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats.format import DEFAULT_MAX_SHARD_BYTES, WriteOptions
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.ops.conversions.consolidate import (
    cast_types,
    choose_dtype,
    exported_formats,
    kept_note,
)
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.conversions.merged_model import MergedModel, refuse_other_kinds
from zerotools.ops.copied_sidecars import lacking_config, with_sidecars
from zerotools.ops.quantised.dequantise import refuse_quantised, with_true_config
from zerotools.ops.salvage.checkpoint_to_fill_from import Other
from zerotools.ops.salvage.examine_damage import Examined
from zerotools.ops.salvage.exported_weights import Naming, Weights, tied_to, weights_of
from zerotools.ops.salvage.fill_holes import (
    FilledWeight,
    Part,
    fill_weight,
    in_pieces,
    joined_parts,
)
from zerotools.ops.weights.lora_merge import AdapterRequest
from zerotools.ops.weights.merged_config import with_base_config
from zerotools.ops.weights.name_check import named_for_model
from zerotools.ops.weights.select_and_rename import (
    describe_output,
    name_function,
    name_matcher,
    parse_rule,
)
from zerotools.ops.weights.tied_weights import resolve_aliases

COMMAND = "salvage"
COPIES = "its own 16-bit weights"
RECORD = "zerotools-salvage.json"
"""The file in the output with the JSON record of the salvage."""
LARGEST_SIDECAR = 2**28
"""The largest size in bytes of a JSON file of the model that is read. The file of a tokenizer may
have tens of MB.
"""


@dataclass(frozen=True, kw_only=True)
class SalvageOptions:
    """The options of `zerotools salvage`. An option that `consolidate.Options` also has means the
    same."""

    dtype: str = "auto"
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES
    strip_prefix: Sequence[str] = ()
    rename: Sequence[str] = ()
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    keep_aliases: bool = False
    format: str = "safetensors"
    check_names: bool = True
    base: Path | None = None
    adapter_config: Path | None = None
    adapter_name: str | None = None

    @property
    def adapter(self) -> AdapterRequest:
        """The user's options for the adapter of a LoRA run."""
        return AdapterRequest(self.base, self.adapter_config, self.adapter_name)

    def naming(self) -> Naming:
        rules = [parse_rule(text) for text in self.rename]
        return Naming(
            name_function(self.strip_prefix, rules), name_matcher(self.include, self.exclude)
        )


@dataclass(frozen=True)
class Salvage:
    """The plan of an export of a damaged checkpoint.

    Attributes:
        examined: the damaged checkpoint, and its damage.
        weights: the weights of the output, keyed by their output names.
        left_out: the reason for each weight that is not written, keyed by the weight's name.
        unnamed: lost files with unknown contents.
        other: the checkpoint that holes are filled from; None if the user named none.
        rounded: weights with elements from 16-bit copies that are written in a wider dtype. Their
            fp32 masters are lost.
        conversion: the conversion that writes the output; None if no weight is complete.
    """

    examined: Examined
    weights: Mapping[Key, FilledWeight]
    left_out: Mapping[str, str]
    unnamed: tuple[str, ...]
    other: Other | None
    notes: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    conversion: Conversion | None = None

    def renamed(self, new_name: Callable[[str], str]) -> Salvage:
        """Return the plan with the names in `weights` and `left_out` replaced by
        `new_name(name)`."""
        weights = {Key(new_name(key.name), key.role): each for key, each in self.weights.items()}
        left_out = {new_name(name): why for name, why in self.left_out.items()}
        return replace(self, weights=weights, left_out=left_out)

    @property
    def is_complete(self) -> bool:
        """True if the output has every weight of the checkpoint, and none of them lost
        precision."""
        return not (self.left_out or self.unnamed or self.rounded)

    @property
    def remark(self) -> str | None:
        """The remark that is written into the output's files; None if the output is equal to an
        export of the undamaged checkpoint."""
        mixed = [part for _, part in self.filled if part.source != COPIES]
        weights = {key for key, part in self.filled if part.source != COPIES}
        said = []
        if mixed:
            elements = sum(box.numel for part in mixed for box in part.boxes)
            said.append(
                f"{len(weights)} of {count_text(len(self.weights), 'weight')} got "
                f"{count_text(elements, 'element')} from another checkpoint"
            )
        if self.rounded:
            said.append(f"{count_text(len(self.rounded), 'weight')} have lost precision")
        if self.left_out or self.unnamed:
            lacking = count_text(len(self.left_out), "weight")
            more = " at least" if self.unnamed else ""
            said.append(f"{lacking}{more} of the damaged checkpoint could not be exported")
        if not said:
            return None
        return (
            f"salvaged: {', and '.join(said)}; {RECORD} in the output directory lists all of them"
        )

    @property
    def filled(self) -> Iterator[tuple[Key, Part]]:
        """The parts that come from other sources than the weight itself, each with the weight's
        key."""
        for key, weight in self.weights.items():
            yield from ((key, part) for part in weight.fills)


def plan_salvage(
    examined: Examined,
    destination: Path,
    options: SalvageOptions,
    other: Other | None = None,
    *,
    config_dir: Path | None = None,
) -> Salvage:
    """Choose a source for every weight. `other` is the checkpoint to fill holes from.

    Raises:
        BadRequest: `other` has another model, or no weight is selected.
        Unsupported: the checkpoint has an adapter of PEFT that is not LoRA.
    """
    refuse_other_kinds(examined.checkpoint)
    naming, table = options.naming(), examined.given.table
    scratch = destination.with_name(f".{destination.name}.sums")
    around, _ = with_sidecars(examined.checkpoint, config_dir, {})
    own = weights_of(
        examined.checkpoint,
        naming,
        scratch,
        table,
        request=replace(options.adapter, model_config=around.model_sidecars.get(CONFIG)),
        lost_names=examined.given.remains.lost_names,
    )
    if other is not None:
        other.refuse_another_model(own.masters)
    weights, left_out = _filled(own, other)
    _add_lost(examined, own, naming, other, weights, left_out)
    unnamed = examined.given.remains.unnamed
    if other is not None and unnamed:
        _add_unnamed(own, other, weights, left_out)
        unnamed = ()
    if not weights and not left_out:
        path = examined.checkpoint.origin.path
        raise BadRequest(f"{path} has no weights that match; nothing to export")
    salvage = Salvage(examined, weights, left_out, unnamed, other)
    return _exported(salvage, own, destination, options, config_dir) if weights else salvage


def _filled(own: Weights, other: Other | None) -> tuple[dict[Key, FilledWeight], dict[str, str]]:
    weights, left_out = dict[Key, FilledWeight](), dict[str, str]()
    for key, tensor in own.masters.tensors.items():
        sources: list[tuple[str, Tensor]] = []
        if (copy := own.copies.tensors.get(key)) is not None and copy.shape == tensor.shape:
            sources.append((COPIES, copy))
        if other is not None:
            sources += other.sources_of(tied_to(own.masters, key.name), tensor)
        found = fill_weight(key, tensor, sources)
        if found.holes is None:
            weights[key] = found
        else:
            left_out[key.name] = found.holes.why or f"lost: {found.holes}"
    return weights, left_out


def _add_lost(
    examined: Examined,
    own: Weights,
    naming: Naming,
    other: Other | None,
    weights: dict[Key, FilledWeight],
    left_out: dict[str, str],
) -> None:
    """Add the weights that cannot be made from the remaining data to `weights` if `other` has them,
    else to `left_out`."""
    lost = dict(own.lost)
    for name, file in examined.given.remains.lost_names.items():
        new = naming.new_name(name)
        if naming.is_selected(new):
            lost.setdefault(new, f"the whole weight was in {file}, and no other file has its shape")
    known = {key.name for key in own.masters.tensors} | set(own.masters.aliases)
    for name, why in lost.items():
        if name in known:
            continue
        found = None if other is None else other.whole(name)
        if found is None:
            left_out[name] = why
        else:
            weights[found.key] = found


def _add_unnamed(
    own: Weights, other: Other, weights: dict[Key, FilledWeight], left_out: dict[str, str]
) -> None:
    """Add the weights that a lost file may have held: all weights that only the other checkpoint
    has."""
    known = {key.name for key in own.masters.tensors} | set(own.masters.aliases) | set(left_out)
    known |= {key.name for key in weights}
    for key in other.weights.masters.tensors:
        if key.name not in known and (found := other.whole(key.name)) is not None:
            weights[found.key] = found


def _exported(
    salvage: Salvage,
    own: Weights,
    destination: Path,
    options: SalvageOptions,
    config_dir: Path | None,
) -> Salvage:
    examined, other, table = salvage.examined, salvage.other, salvage.examined.given.table
    tensors = {key: _of_one_type(weight) for key, weight in salvage.weights.items()}
    aliases = {a: n for a, n in own.masters.aliases.items() if Key(n, "param") in tensors}
    dangling = [a for a in own.masters.aliases if a not in aliases]
    if other is not None and examined.given.remains.unnamed:  # names that are tied are lost, too
        known = {key.name for key in tensors}
        tied = other.weights.masters.aliases.items()
        aliases |= {a: n for a, n in tied if n in known and a not in known}
    left_out = {
        **salvage.left_out,
        **dict.fromkeys(dangling, "it is tied to a weight that is lost"),
    }
    beside = {} if other is None else other.checkpoint.model_sidecars
    model = examined.checkpoint
    if own.merged is not None:
        model = replace(model, model_sidecars=own.merged.checkpoint.model_sidecars)
    sound, unread = _sound_sidecars(model)
    checkpoint, found = with_sidecars(sound, config_dir, beside)
    if own.merged is not None:
        checkpoint, more = with_base_config(checkpoint, own.merged.base)
        found += more
    checkpoint, _ = _sound_sidecars(checkpoint)  # it reports omitted files
    quantisation = refuse_quantised(checkpoint)
    dtype, why = choose_dtype(checkpoint, options.dtype)
    files = {**own.masters.files, **({} if other is None else other.files)}
    source = replace(
        checkpoint, tensors=tensors, aliases=aliases, files=files, problems=(), native=None
    )
    lost = None if salvage.unnamed else (*left_out, *own.unselected)
    fitting = named_for_model(
        source,
        source,
        None,
        is_checked=options.check_names,
        is_merged=own.merged is not None,
        command=COMMAND,
        lost=lost,
    )
    source, said = resolve_aliases(fitting.weights, keep=options.keep_aliases, ties=fitting.ties)
    salvage = salvage.renamed(fitting.new_name)
    left_out = {fitting.new_name(name): why for name, why in left_out.items()}
    mixed = dict(_mixed(salvage.weights, source))
    described = describe_output(source, cast_types(source, dtype))
    rounded = tuple(_rounded(salvage.weights, described))
    salvage = replace(salvage, left_out=left_out, rounded=rounded)
    write = WriteOptions(max_shard_bytes=options.max_shard_bytes, remark=salvage.remark)
    target = exported_formats(table)[options.format].export(described, destination, write)
    target = with_true_config(target, source, quantisation, is_plain=True)
    target = MergedModel(source, merged=own.merged).with_config(target, source)
    said = [*own.notes, *fitting.notes, *said, *unread, *found]
    notes = (*said, *target.notes, *([why] if why else []), *kept_note(described, dtype))
    salvage = replace(salvage, notes=notes)
    lacking = lacking_config(source, target)
    source, target = in_pieces(source, target, mixed)
    stamps = {**examined.given.stamps, **({} if other is None else other.given.stamps)}
    conversion = Conversion(
        source,
        target,
        notes,
        request=repr((options, config_dir, other and other.checkpoint.origin.path)),
        sums=_sums(own, other),
        sums_bytes=sum(w.merged.bytes for w in _both(own, other) if w.merged),
        sums_directory=own.merged.scratch if own.merged else None,
        stamps=stamps,
        command=COMMAND,
        lacking=lacking,
        is_examined=True,
        table=table,
    )
    return replace(salvage, conversion=conversion)


def _rounded(weights: Mapping[Key, FilledWeight], written: Checkpoint) -> Iterator[str]:
    """Yield the names of weights with elements from 16-bit copies that are written in a wider
    dtype."""
    for key, weight in weights.items():
        bits = written.tensors[key].dtype.bits
        if any(part.source == COPIES and part.dtype.bits < bits for part in weight.parts):
            yield key.name


def _sound_sidecars(checkpoint: Checkpoint) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint without damaged JSON files of its model, and a sentence about each of
    them."""
    kept, notes = dict(checkpoint.model_sidecars), []
    for name, path in checkpoint.model_sidecars.items():
        if (why := _damage_of(path)) is not None:
            del kept[name]
            notes.append(f"{path} is not copied: {why}")
    own = checkpoint.own_config
    own = None if own is None or _damage_of(own) is not None else own
    return replace(checkpoint, model_sidecars=kept, own_config=own), notes


def _damage_of(sidecar: Path) -> str | None:
    if sidecar.suffix != ".json":
        return None
    try:
        read_json(sidecar, LARGEST_SIDECAR)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (ValueError, BadFile) as error:
        return f"it is damaged ({error!s:.80})"
    return None


def _of_one_type(weight: FilledWeight) -> Tensor:
    """Return the weight as one tensor if all its parts have the same dtype, else the tensor of its
    first part as a placeholder."""
    types = {part.dtype for part in weight.parts}
    return joined_parts(weight.parts) if len(types) == 1 else weight.parts[0].tensor


def _mixed(
    weights: Mapping[Key, FilledWeight], source: Checkpoint
) -> Iterator[tuple[Key, FilledWeight]]:
    """Yield the weights with parts of several dtypes, each under all keys that it has in
    `source`."""
    mixed = {
        id(w.parts[0].tensor): w for w in weights.values() if len({p.dtype for p in w.parts}) > 1
    }
    for key, tensor in source.tensors.items():
        if id(tensor) in mixed:
            yield key, mixed[id(tensor)]


def _both(own: Weights, other: Other | None) -> list[Weights]:
    return [own] if other is None else [own, other.weights]


def _sums(own: Weights, other: Other | None) -> Callable[[], AbstractContextManager[None]]:
    merged = [weights.merged for weights in _both(own, other) if weights.merged is not None]
    if not merged:
        return nullcontext

    @contextmanager
    def summed() -> Iterator[None]:
        with ExitStack() as stack:
            for each in merged:
                stack.enter_context(each.sums())
            yield

    return summed
