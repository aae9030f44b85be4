"""The two models of a delta, each as `consolidate` would write it from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import FilePlan, Target
from zerotools.formats import FORMATS, FormatTable, detect
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.conversions.quantised_export import AUTO
from zerotools.ops.delta.delta_file import DeltaTensor
from zerotools.ops.weights.convert_layout import MapRequest
from zerotools.ops.weights.model_to_match import read_reference

_DESTINATION = Path("model")


@dataclass(frozen=True, kw_only=True)
class ModelNaming:
    """Options of `consolidate` that give the tensors of a checkpoint the names of a model."""

    strip_prefix: Sequence[str] = ()
    rename: Sequence[str] = ()
    mapping: MapRequest | None = None
    check_names: bool = True
    config_dir: Path | None = None

    @property
    def changes_models(self) -> bool:
        """Return whether an option other than one that accepts all names is given."""
        return bool(self.strip_prefix or self.rename or self.mapping or self.config_dir)


_AS_IT_IS = ModelNaming()


def model_of(
    path: Path, dtype: str, naming: ModelNaming = _AS_IT_IS, table: FormatTable = FORMATS
) -> tuple[Conversion, bool]:
    """Return the plan of the model that `consolidate` would write from the checkpoint at `path`,
    and whether `naming` was used.

    A model directory keeps its names and config if they fit each other, and `naming` is not used.
    With the dtype "auto" its weights keep their dtypes too. Raises the errors of
    `consolidate.prepare_export`.
    """

    def planned(naming: ModelNaming, like: Path | None) -> Conversion:
        options = consolidate.Options(
            dtype=dtype,
            like=like,
            strip_prefix=naming.strip_prefix,
            rename=naming.rename,
            mapping=naming.mapping,
            check_names=naming.check_names,
        )
        return consolidate.prepare_export(
            path, _DESTINATION, options, config_dir=naming.config_dir, table=table
        )

    if not is_model_directory(path, table):
        return planned(naming, None), True
    try:
        like = path if dtype == AUTO else None
        return planned(ModelNaming(check_names=naming.check_names), like), False
    except BadRequest:  # the names are not those of the model
        if not naming.changes_models:
            raise
    return planned(naming, None), True


def is_model_directory(path: Path, table: FormatTable = FORMATS) -> bool:
    """Return whether `path` is a model in safetensors, and not a checkpoint of a run."""
    if not table[detect(path, table=table).format].is_exported:
        return False
    try:
        read_reference(path)
    except (BadFile, BadRequest):  # a damaged file is reported when the checkpoint is read
        return False
    return True


def tensors_of(model: Conversion) -> tuple[DeltaTensor, ...]:
    """Return the tensors of a model, in the order of their files."""
    found = []
    for key, tensor in model.target.checkpoint.tensors.items():
        (chunk,) = tensor.chunks
        found.append(
            DeltaTensor(key.name, key.role, tensor.dtype, tensor.shape, chunk.file, chunk.offset)
        )
    return tuple(sorted(found, key=lambda each: (each.file, each.offset)))


def in_layout(
    model: Conversion, tensors: Iterable[DeltaTensor], sizes: Mapping[str, int]
) -> tuple[Conversion, frozenset[str]]:
    """Return a plan that writes the weights of `model` in the layout of another model, and the
    names of the tensors that both have. The layout is the dtypes, files and positions of `tensors`,
    and the sizes of the files.

    All bytes outside of these tensors are zeros. Raises BadRequest if a tensor has another shape in
    `model`, or if `model` has none of the tensors.
    """
    keys = {key.name: key for key in model.source.tensors}
    for alias, holder in model.source.aliases.items():
        if holder in keys:
            keys.setdefault(alias, keys[holder])
    placed: dict[Key, Tensor] = {}
    sources: dict[Key, Tensor] = {}
    for each in tensors:
        if each.name not in keys:
            continue
        key, own = Key(each.name, each.role), model.source.tensors[keys[each.name]]
        if own.shape != each.shape:
            raise BadRequest(
                f"{each.name} has shape {list(own.shape)} in {model.source.origin.path}, but "
                f"{list(each.shape)} in the other model, and a delta needs two models with equal "
                "shapes; compare them with zerotools diff"
            )
        chunk = Chunk(Box.whole(each.shape), each.file, each.offset)
        placed[key] = Tensor(each.dtype, each.shape, (chunk,))
        sources[key] = own
    if not placed:
        raise BadRequest(
            f"{model.source.origin.path} has no tensor of the other model, so a delta between "
            "them is not possible; if only their names differ, make these equal with --map-to hf, "
            "--rename or --strip-prefix"
        )
    origin = model.target.checkpoint.origin
    whole = Checkpoint(model.destination, placed, origin, files=dict(sizes))
    target = Target(whole, {name: FilePlan(size) for name, size in sizes.items()})
    source = replace(model.source, tensors=sources)
    return replace(model, source=source, target=target), frozenset(key.name for key in placed)
