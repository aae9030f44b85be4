"""Add the weights of the base model to the checkpoint of a run that trained an adapter.

A job's checkpoint may hold only adapters. Then `with_base` adds the frozen weights from the
directory that the run began with. For other runs the user names the base model (`with_given_base`).
Weights that the run stores in 4 bits are taken from the base model, because the run's are rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools import formats
from zerotools.core.adapter_tensor_names import adapter_names
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, ChunksOnDemand, Key, Origin, Tensor
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.hub_layout import HubLayout
from zerotools.formats import FORMATS, FormatTable
from zerotools.formats.safetensors.read import read
from zerotools.io.files.open_source import RemotePath
from zerotools.io.huggingface.model_sidecars import (
    find_model_sidecars,
    of_other_kinds,
    sidecar_kind,
)
from zerotools.ops.quantised.find_quantised import find_quantised
from zerotools.ops.weights.select_and_rename import MASTERS, weights_from
from zerotools.runs.base_model_record import BaseRecord, base_mismatch
from zerotools.runs.training_record import JobRecord

_MODEL_KINDS = ("config", "generation", "processor")


def read_base(path: Path, table: FormatTable = FORMATS) -> Checkpoint:
    """Return the weights of the model at `path`, which the user named as the base of an adapter.

    Raises:
        BadRequest: `path` is not a model, or is a model with adapters.
        Unsupported: its weights are quantised.
    """
    base = formats.read(path, table=table)
    if adapter_names(base.tensors):
        raise BadRequest(
            f"--base {path}: this model has adapters; name the model on which they were trained"
        )
    if base.origin.path.is_dir():
        around = of_other_kinds(find_model_sidecars(base.root), base.model_sidecars)
        base = replace(base, model_sidecars={**base.model_sidecars, **around})
    found = find_quantised(base)
    if found.is_certain:
        kinds = " and ".join(sorted({each.kind for each in found.weights.values()}))
        raise Unsupported(
            f"--base {path}: its weights are quantised ({kinds or 'according to config.json'}), "
            "but adapters need weights of 16 bits or more; name the unquantised model, or make it "
            f"first: zerotools consolidate {path} BASE_16 --dtype bf16"
        )
    return weights_from(base, MASTERS)


def with_given_base(
    own: Checkpoint,
    held: Checkpoint,
    base: Checkpoint,
    copies: Collection[str],
    *,
    is_tied: bool,
) -> tuple[Checkpoint, Checkpoint]:
    """Return two checkpoints for a merge: the whole model (base weights and trained weights), and
    the tensors of the run, which include the adapter.

    `held` are the tensors of the run, and `own` are its weights under the names of the model.
    Weights of the run replace those of `base`, except weights in 4 bits, and tied weights in
    `copies`, which were not trained. If `is_tied` is False, training did not keep weights tied: a
    tied weight of `base` then keeps its values where the run has another value for its holder. The
    file names in the two returned checkpoints are relative to the same root directory.

    Raises:
        Unsupported: run and base model are in different stores.
    """
    joined = joined_files(held, base)
    of_run, of_base = joined.of_run, joined.of_other
    shapes = {key.name: t for key, t in base.tensors.items() if key.role in ("param", "buffer")}
    packed = {
        key.name.rpartition(".")[0]
        for key, tensor in own.tensors.items()
        if key.name in shapes and not _is_same_kind(tensor, shapes[key.name])
    }
    taken = {
        key: tensor
        for key, tensor in own.tensors.items()
        if (key.name in shapes and _is_same_kind(tensor, shapes[key.name]))
        or (key.name not in shapes and not _belongs_to(key.name, packed))
    }
    apart = {
        alias
        for alias, name in base.aliases.items()
        if not is_tied and name not in copies and Key(name, "param") in taken
    }
    tied = base.aliases.keys() - apart
    taken = {k: t for k, t in taken.items() if not (k.name in copies and k.name in tied)}
    names = {key.name for key in taken}
    tensors = {
        key: moved_below(tensor, of_base)
        for key, tensor in base.tensors.items()
        if key.name not in names or key.role not in ("param", "buffer")
    }
    untied = {
        Key(alias, "param"): moved_below(shapes[base.aliases[alias]], of_base) for alias in apart
    }
    tensors |= untied | {key: moved_below(tensor, of_run) for key, tensor in taken.items()}
    aliases = {a: n for a, n in {**base.aliases, **own.aliases}.items() if _is_weight(n, tensors)}
    weights = replace(
        own,
        root=joined.root,
        tensors=tensors,
        files=joined.files,
        archives=joined.archives,
        aliases={a: n for a, n in aliases.items() if not _is_weight(a, tensors)},
        own_config=base.own_config,
        stamps={**base.stamps, **held.stamps},
        model_sidecars=_sidecars(own, base),
        problems=tuple(
            each if each.file is None else replace(each, file=_under(of_run, each.file))
            for each in held.problems
        ),
    )
    halves = {key: moved_below(tensor, of_run) for key, tensor in held.tensors.items()}
    return weights, replace(weights, tensors=halves)


def _is_weight(name: str, tensors: Mapping[Key, Tensor]) -> bool:
    return Key(name, "param") in tensors


def _is_same_kind(own: Tensor, base: Tensor) -> bool:
    """Return whether a tensor of the run may replace the tensor with the same name in the base
    model.

    Weights of 16 bits or more may differ in dtype and in their number of rows, because a vocabulary
    may have grown. Other tensors must have the same dtype and shape.
    """
    if not own.dtype.is_float or own.dtype.bits < 16 or len(own.shape) != len(base.shape):
        return own.dtype == base.dtype and own.shape == base.shape
    return own.shape == base.shape or (len(own.shape) > 1 and own.shape[1:] == base.shape[1:])


def _belongs_to(name: str, modules: set[str]) -> bool:
    """Return whether the tensor is in one of the modules, like the scales of a packed weight."""
    words = name.split(".")
    return any(".".join(words[:count]) in modules for count in range(1, len(words)))


def _sidecars(own: Checkpoint, base: Checkpoint) -> dict[str, Path]:
    """Return config.json and similar files of the base model, and the tokenizer of the run. If the
    run has no tokenizer, return that of the base model."""
    around = own.model_sidecars
    if own.origin.path.is_dir():
        around = {**around, **of_other_kinds(find_model_sidecars(own.root), around)}
    chosen = {n: p for n, p in base.model_sidecars.items() if sidecar_kind(n) in _MODEL_KINDS}
    chosen |= of_other_kinds(around, chosen)
    return chosen | of_other_kinds(base.model_sidecars, chosen)


@dataclass(frozen=True)
class JoinedFiles:
    """The files of two checkpoints below one root directory. `of_run` and `of_other` are the
    prefixes of their file names. `files` and `archives` are those of `Checkpoint`, with the new
    names."""

    root: Path
    of_run: str
    of_other: str
    files: Mapping[str, int]
    archives: Mapping[str, Mapping[int, int]]


def joined_files(run: Checkpoint, other: Checkpoint) -> JoinedFiles:
    """Return the files of a run and those of another checkpoint, with paths relative to a common
    root directory.

    Raises:
        Unsupported: the two are in different stores.
    """
    root, prefixes = _one_root(run.root, other.root)
    each = [*zip(prefixes, (run, other), strict=True)]
    files = {_under(prefix, n): size for prefix, one in each for n, size in one.files.items()}
    archives = {_under(p, n): spans for p, one in each for n, spans in one.archives.items()}
    return JoinedFiles(root, *prefixes, files, archives)


def _one_root(run: Path, other: Path) -> tuple[Path, tuple[str, str]]:
    """Return a root directory for two checkpoints, and the prefix of the file names of each."""
    if not isinstance(other, RemotePath):
        return run, ("", f"{other.absolute()}/")
    if not isinstance(run, RemotePath):
        return other, (f"{run.absolute()}/", "")
    for root in (run, *run.parents):
        if root == other or root in other.parents:
            return root, (_below(run, root), _below(other, root))
    raise Unsupported(
        f"the adapter is in {run} and its base model in another store, {other}; copy one to a disk"
    )


def _below(path: Path, root: Path) -> str:
    words = path.parts[len(root.parts) :]
    return "".join(f"{word}/" for word in words)


def _under(prefix: str, file: str) -> str:
    return file if file.startswith("/") else f"{prefix}{file}"


def moved_below(tensor: Tensor, prefix: str) -> Tensor:
    """Return the tensor with `prefix` before its relative file names."""
    if not prefix:
        return tensor
    chunks = tensor.chunks

    def named() -> list[Chunk]:
        return [replace(chunk, file=_under(prefix, chunk.file)) for chunk in chunks]

    moved: Sequence[Chunk] = ChunksOnDemand(named)
    return replace(tensor, chunks=moved)


BASE, A, B = ".base_layer.", ".lora_A.default.", ".lora_B.default."


def with_base(adapters: Checkpoint, record: JobRecord, base: BaseRecord) -> Checkpoint:
    """Return the tensors of `adapters` and of the model `base`, under the names of the Hub. Weights
    with an adapter have the names of the job. No tensor data is read.

    Raises:
        BadRequest: the base model does not exist any more, or has files of other sizes.
        BadFile: the base model lacks a weight that has an adapter.
    """
    directory = Path(base.path)
    _refuse(adapters, base_mismatch(base, directory, digests=False))
    model = _read(directory, base)
    renamed = {
        _on_hub(f"{stem}.weight", record.hub): f"{stem}{BASE}weight"
        for key in adapters.tensors
        for stem, found, _ in [key.name.partition(A)]
        if found
    }
    held = {key.name for key in model.tensors}
    for name in renamed:
        if name not in held:
            raise BadFile(
                f"{directory} has no {name}, which an adapter of {_of(adapters)} needs; name the "
                "base model of this adapter with --base"
            )
    own = {_on_hub(key.name, record.hub) for key in adapters.tensors}
    tensors: dict[Key, Tensor] = {
        Key(renamed.get(key.name, key.name), key.role): tensor
        for key, tensor in model.tensors.items()
        if key.name not in own
    }
    return replace(
        adapters,
        tensors=tensors | dict(adapters.tensors),
        files={**model.files, **adapters.files},
        aliases={},
    )


def _read(directory: Path, base: BaseRecord) -> Checkpoint:
    """Return the tensors of the files that the run read, with absolute file names. Other files in
    the directory may be other checkpoints."""
    tensors: dict[Key, Tensor] = {}
    files: dict[str, int] = {}
    for name in base.files:
        part = read(directory / name)
        for key, tensor in part.tensors.items():
            if key in tensors:
                raise BadFile(
                    f"{directory / name} holds {key.name}, which another file there also holds; "
                    "copy or download the model again"
                )
            chunks = (replace(each, file=str(part.root / each.file)) for each in tensor.chunks)
            tensors[key] = replace(tensor, chunks=tuple(chunks))
        files |= {str(part.root / file): size for file, size in part.files.items()}
    return Checkpoint(directory, tensors, Origin("safetensors", directory), files=files)


def check_bytes(adapters: Checkpoint, base: BaseRecord) -> None:
    """Read every byte of the base model, and check that the adapters were trained on it.

    Raises:
        BadRequest: it is another model.
    """
    _refuse(adapters, base_mismatch(base, Path(base.path)))


def _refuse(adapters: Checkpoint, why: str | None) -> None:
    if why is not None:
        raise BadRequest(
            f"{_of(adapters)} holds only adapters, and their base model has changed: {why}; name "
            "a copy of it with zerotools consolidate --base DIR, or export the adapter with "
            "--adapter-only"
        )


def _of(adapters: Checkpoint) -> str:
    return str(adapters.origin.path)


def _on_hub(name: str, hub: HubLayout) -> str:
    """Return the Hub's name of the job's tensor `name`, if it is one whole tensor there, else
    `name`."""
    blocks = hub.get(name, ())
    if len(blocks) == 1 and blocks[0].box == Box.whole(blocks[0].shape):
        return blocks[0].name
    return name
