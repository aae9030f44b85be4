"""Convert a checkpoint, with the state of its optimizer, to the layout of another program.

Masters, 16-bit copies and moments are moved in the same way as their weight. A number such as a
step is copied to each tensor that gets a part of its parameter. If several parameters are joined
into one tensor, their numbers must be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerotools.core.adapter_tensor_names import is_adapter_checkpoint
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.quantisation_schemes import PAYLOAD, Arithmetic
from zerotools.core.scaled_cast import ScaledCast
from zerotools.core.target import LOOSE, WEIGHTS
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.io.distcp.item_chunks import archives_of
from zerotools.io.files.read_json import read_json
from zerotools.io.files.regular_files import read_user_file
from zerotools.io.huggingface.config_json import LARGEST_CONFIG
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.maps.detect_layout import FoundLayout
from zerotools.maps.expression_views import Shape
from zerotools.maps.map_file import HUB, FamilyMap, read_map
from zerotools.maps.match_stored_names import written_views
from zerotools.maps.model_layout import ModelLayout, layout_of_model
from zerotools.maps.shipped_maps import check_layout, map_of_model
from zerotools.maps.transformers_names import MEMORY, PrefixMap, prefix_map_of
from zerotools.maps.value_formulas import ORDERS, BoundValue
from zerotools.maps.views import TensorView
from zerotools.ops.weights.convert_adapter_layout import MappedAdapter, mapped_adapter
from zerotools.ops.weights.match_names_to_layout import named_as_layout, shapes_of
from zerotools.ops.weights.megatron_run_arguments import with_run_arguments
from zerotools.ops.weights.rearrange_tensors import rearranged_checkpoint
from zerotools.ops.weights.select_and_rename import rename_tensors

_UNKNOWN = TrainingState()


@dataclass(frozen=True, kw_only=True)
class MapRequest:
    """The user's request to convert a checkpoint to the layout `to`.

    `source` is the layout of the checkpoint; None: it is detected. `file` is the path of a weight
    map; None: a map of zerotools is used. `arguments` override values of config.json.
    """

    to: str
    source: str | None = None
    file: Path | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The request as text, with the contents of the map's file."""
        words = None if self.file is None else read_user_file(self.file)
        return repr((self.to, self.source, words, sorted(self.arguments.items())))


@dataclass(frozen=True)
class MappedCheckpoint:
    """A checkpoint that was converted to another layout.

    `origins` is new name -> old tensors that the new tensor is made from. `is_changed` is False if
    the checkpoint already had the layout. `adapter` describes the conversion if the checkpoint is
    only a LoRA adapter.
    """

    checkpoint: Checkpoint
    notes: tuple[str, ...]
    origins: Mapping[str, tuple[str, ...]]
    is_changed: bool = True
    adapter: MappedAdapter | None = None


def config_of(path: Path | None, where: Path) -> dict[str, Any]:
    """Read the config.json at `path`. `where` is the checkpoint, for messages.

    Raises:
        BadRequest: the file does not exist.
        BadFile: the file is not a JSON object.
    """
    if path is None:
        raise BadRequest(
            f"{where} has no {CONFIG}, and a layout map needs the sizes in it; pass --config-dir "
            "DIR"
        )
    try:
        config: Any = read_json(path, LARGEST_CONFIG)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise BadFile(f"{path} is not a JSON object; name the config.json of a model")
    return config


def chosen_map(file: Path | None, config: Mapping[str, Any]) -> FamilyMap:
    """Return the map in `file`; None: the map of zerotools for this model.

    Raises:
        BadRequest: the file cannot be read, or is not a map.
        Unsupported: no map is for the model.
    """
    if file is None:
        return map_of_model(config)
    return read_map(read_user_file(file), str(file))


def mapped_checkpoint(
    checkpoint: Checkpoint, request: MapRequest, training: TrainingState = _UNKNOWN
) -> MappedCheckpoint:
    """Return `checkpoint` in the requested layout. `training` is the state of its run. No tensor
    data is read.

    Raises:
        BadRequest: config.json does not exist, or contradicts the tensors; the checkpoint has no
            layout of the map, or several layouts fit; or tensors that are joined have different
            state.
        Unsupported: there is no map for the model, or there is state that cannot be moved together
            with its weight.
        BadFile: config.json is damaged.
    """
    place = checkpoint.model_sidecars.get(CONFIG) or checkpoint.own_config
    config = config_of(place, checkpoint.origin.path)
    names_alone = prefix_map_of(config) if request.file is None else None
    is_adapter = is_adapter_checkpoint(checkpoint.tensors)
    if names_alone is not None and is_adapter:
        raise Unsupported(
            f"{checkpoint.origin.path} is a LoRA adapter, but the map {names_alone.name} renames "
            "only whole models; merge the adapter into its base model, and map the result"
        )
    if names_alone is not None:
        return _with_names(checkpoint, request, names_alone)
    family = chosen_map(request.file, config)
    request = replace(request, arguments=with_run_arguments(training, config, request.arguments))
    for name in (request.to, request.source):
        if name is not None:
            check_layout(family, name, hub=HUB)
    if is_adapter:
        moved = mapped_adapter(
            checkpoint, family, request.to, request.source, config, request.arguments
        )
        return MappedCheckpoint(moved.checkpoint, moved.notes, {}, adapter=moved)
    named = named_as_layout(checkpoint, family, request.source, config, request.arguments)
    checkpoint, found = named.checkpoint, named.found
    held = shapes_of(checkpoint)
    target = layout_of_model(family, request.to, config, found.given)
    said = [] if request.source else [f"the tensors have the layout {found.layout.name}"]
    said[:] = [f"{text} of the map {family.name}" for text in said]
    if _is_same(found, target):
        note = f"the checkpoint already has the layout {target.name}: its tensors stay as they are"
        same = named.own_names({key.name: (key.name,) for key in checkpoint.tensors})
        is_changed = any(olds != (new,) for new, olds in same.items())
        checkpoint = replace(checkpoint, native=None)
        return MappedCheckpoint(checkpoint, (*named.notes, note), same, is_changed=is_changed)
    stages = [found.stored.views]
    stages += [] if found.layout.name == HUB else [found.layout.to_hub]
    stages += [] if target.name == HUB else [target.of_hub]
    stages.append(written_views(target))
    origins = _origins(stages)
    plain, rest = _divided_by_shape(checkpoint, held, found, origins)
    for views in stages:
        plain = rearranged_checkpoint(plain, views)
    tensors = {**_in_scale(plain, found.layout, target), **rest}
    aliases = _aliases(checkpoint, found.layout, target, tensors)
    # Chunks that are cut and joined do not record their archive any more.
    archives = archives_of(checkpoint)
    made = replace(checkpoint, tensors=tensors, aliases=aliases, native=None, archives=archives)
    notes = (*named.notes, *said, *_padding_notes(found, target), *_left_out_notes(found))
    return MappedCheckpoint(made, notes, named.own_names(origins))


def _with_names(checkpoint: Checkpoint, request: MapRequest, names: PrefixMap) -> MappedCheckpoint:
    """Do the work of `mapped_checkpoint` with a map that only renames tensors."""
    for asked in (request.to, request.source):
        if asked not in (HUB, MEMORY, None):
            raise BadRequest(
                f"the map {names.name} has no layout {asked}; it has {HUB} and {MEMORY}"
            )
    held = {*shapes_of(checkpoint), *checkpoint.aliases}
    found = names.layout_of(held) if request.source is None else request.source
    if found == request.to:
        note = f"the checkpoint already has the layout {found}: its tensors stay as they are"
        same = {key.name: (key.name,) for key in checkpoint.tensors}
        return MappedCheckpoint(replace(checkpoint, native=None), (note,), same, is_changed=False)
    new_names = {name: names.renamed(name, request.to) for name in held}
    made = rename_tensors(checkpoint, lambda name: new_names.get(name, name))
    said = f"the tensors have the layout {found} of the map {names.name}"
    origins = {new_names.get(key.name, key.name): (key.name,) for key in checkpoint.tensors}
    notes = () if request.source else (said,)
    return MappedCheckpoint(replace(made, native=None), notes, origins)


def _is_same(found: FoundLayout, target: ModelLayout) -> bool:
    ours, wanted = found.layout.layout, target.layout
    return (ours.same_as or ours.name) == (wanted.same_as or wanted.name)


def _origins(stages: list[Mapping[str, TensorView]]) -> dict[str, tuple[str, ...]]:
    """Return a dict from new names to the old tensors that each is made from, including old tensors
    that the checkpoint lacks."""
    origins: dict[str, tuple[str, ...]] = {}
    for number, views in enumerate(stages):
        origins = {
            name: tuple(
                dict.fromkeys(
                    old
                    for each in view.names
                    for old in (origins.get(each, ()) if number else (each,))
                )
            )
            for name, view in views.items()
        }
    return origins


def _in_scale(checkpoint: Checkpoint, found: ModelLayout, target: ModelLayout) -> dict[Key, Tensor]:
    """Return the tensors of `checkpoint`, which already has the names and shapes of `target`. If
    the layouts `found` and `target` store a weight in different scales, the weight and its
    optimizer state become computed tensors.

    Raises:
        Unsupported: the optimizer state of such a weight is not an average of gradients; neither of
            the two layouts is that of the Hub; or layers with different scales are joined into one
            tensor.
    """
    rules = {name: rule for old, rule in found.computed.items() for name in found.of_hub[old].names}
    to_hub, path = bool(rules), checkpoint.origin.path
    zeros: dict[str, int] = {}
    if target.computed or target.zeros:
        for name, view in written_views(target).items():
            here = {target.computed.get(each) for each in view.names}
            if len(here) > 1:
                raise Unsupported(f"{path}: the layers of {name} are stored in different scales")
            if (rule := here.pop()) is not None:
                rules[name], to_hub = rule, False
            if name in target.zeros and name in target.padded:
                zeros[name] = target.padded[name][1]
    if (rules or zeros) and HUB not in (found.name, target.name):
        raise Unsupported(
            f"{path}: zerotools computes weights of the layouts {found.name} and {target.name} "
            f"only to or from the layout {HUB}; map the checkpoint to {HUB} first, and the result "
            f"to {target.name}"
        )
    tensors = dict(checkpoint.tensors)
    for key, tensor in checkpoint.tensors.items():
        made = _arithmetic(path, key, rules.get(key.name), to_hub=to_hub)
        if key.name in zeros:
            made = replace(made or Arithmetic("*", 1.0), zeros_from=zeros[key.name])
        if made is not None:
            tensors[key] = ScaledCast(tensor.dtype, tensor.shape, (), made, {PAYLOAD: tensor})
    return tensors


def _arithmetic(
    path: Path, key: Key, rule: BoundValue | None, *, to_hub: bool
) -> Arithmetic | None:
    if rule is None:
        return None
    if key.role in (*WEIGHTS, "param16"):
        return rule.of_weight(to_hub=to_hub)
    if key.role not in ORDERS:
        raise Unsupported(
            f"{path}: {key} cannot be converted together with its weight, which is stored in "
            "another scale, because zerotools does not know how this state depends on the "
            "gradient; map only the weights, with zerotools consolidate or convert --weights-only"
        )
    return rule.of_state(ORDERS[key.role], to_hub=to_hub)


def _divided_by_shape(
    checkpoint: Checkpoint,
    held: Mapping[str, Shape],
    found: FoundLayout,
    origins: Mapping[str, tuple[str, ...]],
) -> tuple[Checkpoint, dict[Key, Tensor]]:
    """Divide the checkpoint into the tensors that have the shape of their weight, and all other
    state (such as numbers) under its new names.

    Raises:
        BadRequest: there is state for a weight that the checkpoint lacks.
        Unsupported: there is state of another shape for a weight that is not only renamed.
    """
    plain: dict[Key, Tensor] = {}
    rest: dict[Key, Tensor] = {}
    new_names: dict[str, list[str]] = {}
    for new, olds in origins.items():
        for old in olds:
            new_names.setdefault(old, []).append(new)
    for key, tensor in checkpoint.tensors.items():
        if key.role == LOOSE:
            rest[key] = tensor
        elif key.name in found.stored.ignored or key.name in found.stored.copies:
            continue
        elif key.name not in held:
            raise BadRequest(
                f"{checkpoint.origin.path} has {key}, but no weight {key.name}, and a map moves "
                "such state only with its weight"
            )
        elif tensor.shape == held[key.name]:
            plain[key] = tensor
        else:
            for new in new_names.get(key.name, ()):
                if tensor.numel != 1 and (len(origins[new]) > 1 or len(new_names[key.name]) > 1):
                    raise Unsupported(
                        f"{checkpoint.origin.path}: {key} has shape {list(tensor.shape)}, but its "
                        f"weight has shape {list(held[key.name])}, so it cannot be moved into "
                        f"{new}; map the weights alone, with zerotools consolidate"
                    )
                rest.setdefault(Key(new, key.role), tensor)
    return replace(checkpoint, tensors=plain), rest


def _aliases(
    checkpoint: Checkpoint, found: ModelLayout, target: ModelLayout, tensors: Mapping[Key, Tensor]
) -> dict[str, str]:
    """Return the tied names of the checkpoint under their new names, and the tied names of the
    layout."""
    there = {key.name for key in tensors}
    new_names = {names[0]: new for new, names in _of_hub(target) if len(names) == 1}
    renamed = {
        old: new_names[names[0]]
        for old, names in _of_hub(found)
        if len(names) == 1 and names[0] in new_names
    }
    ties = {
        renamed[alias]: renamed[name]
        for alias, name in checkpoint.aliases.items()
        if alias in renamed and name in renamed
    }
    for name, other in target.layout.ties.items():
        if name in target.optional:
            ties.setdefault(name, other)
    ties = {**target.copies, **ties}
    return {alias: name for alias, name in ties.items() if alias not in there and name in there}


def _of_hub(layout: ModelLayout) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each tensor of a layout, with the Hub's tensors that it is made from."""
    for name, view in layout.of_hub.items():
        yield name, view.names


def _padding_notes(found: FoundLayout, target: ModelLayout) -> Iterator[str]:
    for name, (there, rows) in found.layout.padded.items():
        if there > rows and name in found.stored.views:
            yield f"left out {count_text(there - rows, 'row')} of padding of {name}"
    for name, (there, rows) in target.padded.items():
        if there > rows:
            yield (
                f"{name} is padded from {rows} to {there} rows with zeros"
                if name in target.zeros
                else f"{name} is padded from {rows} to {there} rows, which repeat the last; "
                "--map-arg vocab_multiple=1 writes none"
            )


def _left_out_notes(found: FoundLayout) -> Iterator[str]:
    if names := found.stored.ignored:
        yield f"left out {count_text(len(names), 'tensor')}, which the map ignores ({names[0]})"
    for copy in found.stored.copies:
        yield f"left out {copy}, the second copy of {found.layout.copies[copy]}"
    for index, count in found.absent_counts.items():
        yield (
            f"config.json has {count_text(count, 'layer')} of {index}, but the checkpoint has "
            "none: the output will not have them either"
        )


def mapped_training(
    checkpoint: Checkpoint, training: TrainingState, origins: Mapping[str, tuple[str, ...]]
) -> TrainingState:
    """Return the training state under the new names of its weights.

    Raises:
        BadRequest: parameters that are joined are in different groups, or have different numbers
            such as steps.
        Unsupported: the parameters in the groups have numbers instead of names.
    """
    path = checkpoint.origin.path
    if training.unnamed:
        raise Unsupported(
            f"{path} has numbers instead of names in its optimizer state; convert it with --order "
            "first, and map the result"
        )
    members = {name: number for number, g in enumerate(training.groups) for name in g.params}
    place = {name: at for at, name in enumerate(members)}
    news: list[list[tuple[int, str]]] = [[] for _ in training.groups]
    frozen, buffers, scalars = set(), set(), dict[Key, Scalar]()
    by_role: dict[str, dict[str, Scalar]] = {}
    for key, scalar in training.scalars.items():
        by_role.setdefault(key.role, {})[key.name] = scalar
    for new, olds in origins.items():
        groups = {members.get(old) for old in olds}
        if len(groups) > 1:
            raise BadRequest(
                f"{path}: {' and '.join(olds[:2])} are parts of {new}, but are in different param "
                "groups, or one was not trained; map the weights alone, with zerotools consolidate"
            )
        group = groups.pop() if groups else None
        if group is not None:
            news[group].append((min(place[old] for old in olds), new))
        frozen |= {new} if any(old in training.frozen for old in olds) else set()
        buffers |= {new} if olds and all(old in training.buffers for old in olds) else set()
        for role, numbers in by_role.items():
            number = _one_number(path, new, role, [numbers.get(old) for old in olds])
            if number is not None:
                scalars[Key(new, role)] = number
    made = tuple(
        ParamGroup(tuple(name for _, name in sorted(new)), group.options)
        for new, group in zip(news, training.groups, strict=True)
    )
    return replace(
        training,
        groups=made,
        scalars=scalars,
        frozen=frozenset(frozen),
        buffers=frozenset(buffers),
        is_ordered=False,
    )


def _one_number(path: Path, new: str, role: str, found: list[Scalar | None]) -> Scalar | None:
    if not found:
        return None
    first = found[0]
    for each in found:
        if each != first:
            ours = None if first is None else first.value
            theirs = None if each is None else each.value
            raise BadRequest(
                f"{path}: the parts of {new} have {role} {ours} and {theirs}, but one tensor has "
                "only one value; map the weights alone, with zerotools consolidate"
            )
    return first
