"""NAME.zerotools.json: the digests of a checkpoint's tensors and files
(docs/reference/digest-manifest.md).

The manifest lies next to the checkpoint, never inside. An output of zerotools also has the digests
of its files inside, in its marker (`WrittenRecord`), which moves with the output. A manifest may
describe a tag directory, or the run's directory around it:

    run.zerotools.json               lists  global_step6/mp_rank_00_model_states.pt, rng_state_0.pth
    run/global_step6.zerotools.json  lists  mp_rank_00_model_states.pt
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.training_state import TrainingState
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.files.metadata_memory_limit import DataSize, no_data
from zerotools.io.files.open_source import RemotePath
from zerotools.io.files.read_json import read_json
from zerotools.io.output.manifest_path import sidecar_of_path
from zerotools.io.output.output_marker import MARKER, read_written, tree_digest
from zerotools.ops.verification.checkpoint_files import CheckpointFiles
from zerotools.ops.verification.tensor_digests import ALGORITHM, TensorDigest
from zerotools.runs.thinning_record import is_thinned
from zerotools.version import version

SCHEMA = "zerotools.manifest/1"
_LARGEST = 2**26
_HEX = 32


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size of a file in bytes, and the digest of its bytes in hexadecimal."""

    size: int
    digest: str


@dataclass(frozen=True)
class DigestManifest:
    """The digests of a checkpoint's tensors and files.

    `name` is the name of the checkpoint. `scalars` are the plain numbers in the optimizer state,
    such as `step`. `files` may be empty.
    """

    name: str
    format: str
    stage: int | None
    world_size: int | None
    step: int | None
    tensors: Mapping[Key, TensorDigest]
    aliases: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[Key, int | float] = field(default_factory=dict)
    files: Mapping[str, FileDigest] = field(default_factory=dict)


def manifest_of(
    checkpoint: Checkpoint,
    training: TrainingState,
    tensors: Mapping[Key, TensorDigest],
    files: Mapping[str, FileDigest],
    name: str,
) -> DigestManifest:
    """Return the manifest of a checkpoint with the digests `tensors` and `files`."""
    origin = checkpoint.origin
    return DigestManifest(
        name,
        origin.format,
        origin.stage,
        origin.world_size,
        training.steps if origin.step is None else origin.step,
        tensors,
        dict(checkpoint.aliases),
        {key: scalar.value for key, scalar in training.scalars.items()},
        files,
    )


def digested_tensors(checkpoint: Checkpoint, training: TrainingState) -> list[Key]:
    """Return the tensors that get a digest. Single numbers such as `step` are in `scalars`, even if
    the format stores them as tensors."""
    return [key for key in checkpoint.tensors if key not in training.scalars]


def sidecar_of(files: CheckpointFiles) -> Path:
    """Return the default path of a checkpoint's manifest."""
    return sidecar_of_path(files.subject)


def write_digest_manifest(manifest: DigestManifest, path: Path, files: CheckpointFiles) -> None:
    """Write a manifest to a new file, flush it, and rename it to `path`.

    Raises:
        BadRequest: as `check_manifest_target`.
    """
    check_manifest_target(path, files)
    put_digest_manifest(manifest, path)


def check_manifest_target(path: Path, files: CheckpointFiles) -> None:
    """Check that a manifest can be written at `path`.

    Raises:
        BadRequest: the path is inside the checkpoint, its directory does not exist or cannot be
            written, or another file than a manifest exists there.
    """
    inside = files.subject.resolve()
    if inside in path.resolve().parents or path.resolve() == inside:
        raise BadRequest(f"{path} is inside the checkpoint {files.subject}; write it elsewhere")
    if path.exists():
        if not path.is_file():
            raise BadRequest(f"{path} is not a regular file; choose another file for the manifest")
        try:
            read_digest_manifest(path, files.on_disk)
        except (BadFile, Unsupported, OSError):
            raise BadRequest(
                f"{path} exists and is not a manifest that zerotools reads; remove it, or choose "
                "another file"
            ) from None
    if isinstance(path, RemotePath):
        from zerotools.io.stores.store_path import writable_store

        writable_store(path)
        return
    if not path.parent.is_dir():
        raise BadRequest(f"{path.parent} is not a directory; make it, or choose another file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise BadRequest(
            f"{path.parent} cannot be written; choose another file with --write-manifest FILE"
        )


def put_digest_manifest(manifest: DigestManifest, path: Path) -> None:
    """Write a manifest as `write_digest_manifest` does, without checking the path."""
    tree = to_tree(manifest)
    text = json.dumps({**tree, "digest": tree_digest(tree)}, indent=1) + "\n"
    if isinstance(path, RemotePath):
        from zerotools.io.stores.store_path import put_object

        put_object(path, text.encode())
    else:
        from zerotools.runs.manifest import write_durably

        write_durably(path, text)


def to_tree(manifest: DigestManifest) -> dict[str, Any]:
    """Return the manifest in its documented JSON form, without its own digest."""
    return {
        "schema": SCHEMA,
        "zerotools": version(),
        "algorithm": ALGORITHM,
        "name": manifest.name,
        "format": manifest.format,
        "stage": manifest.stage,
        "world_size": manifest.world_size,
        "step": manifest.step,
        "tensors": [
            {
                "name": key.name,
                "role": key.role,
                "dtype": each.dtype.name,
                "shape": list(each.shape),
                "digest": each.digest,
                "casts": dict(each.casts),
            }
            for key, each in manifest.tensors.items()
        ],
        "aliases": dict(manifest.aliases),
        "scalars": [
            {"name": key.name, "role": key.role, "value": value}
            for key, value in manifest.scalars.items()
        ],
        "files": {
            name: {"size": each.size, "digest": each.digest}
            for name, each in manifest.files.items()
        },
    }


def read_digest_manifest(path: Path, data_size: DataSize = no_data) -> DigestManifest:
    """Read and check the manifest of a checkpoint. `data_size` returns the size of the checkpoint
    in bytes, which limits the size of the manifest.

    Raises:
        OSError: the file cannot be read.
        BadFile: the file is damaged, or is not a manifest.
        Unsupported: the manifest has another version or another digest algorithm.
    """
    try:
        tree = read_json(path, _LARGEST, data_size=data_size, is_source=False)
    except ValueError as error:
        raise BadFile(f"{path} is not JSON, so it is not a manifest: {error!s:.200}") from None
    schema = tree.get("schema") if isinstance(tree, dict) else None
    if not isinstance(schema, str) or not schema.startswith("zerotools.manifest/"):
        raise BadFile(f"{path} is not a manifest of zerotools: it has no schema {SCHEMA}")
    if schema != SCHEMA or tree.get("algorithm") != ALGORITHM:
        raise Unsupported(
            f"{path} has the schema {schema} and digests of the algorithm "
            f"{tree.get('algorithm')!r:.40}, but this version reads {SCHEMA} with {ALGORITHM}; "
            "write it again with --write-manifest"
        )
    found = tree.pop("digest", None)
    if found != tree_digest(tree):
        raise BadFile(
            f"{path} does not have the digest {found!r:.40} that it records: the manifest is "
            "damaged or was changed by hand; copy or download it again"
        )
    try:
        return _from_tree(tree)
    except (KeyError, TypeError, ValueError, AttributeError, Unsupported) as error:
        raise BadFile(f"{path} is not a manifest that zerotools wrote: {error!r:.200}") from None


def _from_tree(tree: Mapping[str, Any]) -> DigestManifest:
    files = {name: _file(name, each) for name, each in tree["files"].items()}
    return DigestManifest(
        str(tree["name"]),
        str(tree["format"]),
        _count(tree["stage"]),
        _count(tree["world_size"]),
        _count(tree["step"]),
        {Key(each["name"], each["role"]): _tensor(each) for each in tree["tensors"]},
        {str(alias): str(name) for alias, name in tree["aliases"].items()},
        {Key(each["name"], each["role"]): _number(each["value"]) for each in tree["scalars"]},
        files,
    )


def _tensor(each: Mapping[str, Any]) -> TensorDigest:
    shape = tuple(each["shape"])
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"shape {shape}")
    casts = {str(name): _digest(value) for name, value in each["casts"].items()}
    return TensorDigest(dtypes.dtype_named(each["dtype"]), shape, _digest(each["digest"]), casts)


def _file(name: str, each: Mapping[str, Any]) -> FileDigest:
    size = _count(each["size"])
    if size is None or not stays_below_root(name):
        raise ValueError(f"file {name!r}")
    return FileDigest(size, _digest(each["digest"]))


def _digest(value: object) -> str:
    if not isinstance(value, str) or len(value) != _HEX:
        raise ValueError(f"digest {value!r}")
    return value


def _count(value: object) -> int | None:
    if value is None or (type(value) is int and value >= 0):
        return value
    raise ValueError(f"count {value!r}")


def _number(value: object) -> int | float:
    if isinstance(value, int | float):
        return value
    raise ValueError(f"number {value!r}")


def aligned_manifest(manifest: DigestManifest, files: CheckpointFiles) -> DigestManifest | None:
    """Return the manifest with file names relative to the directory of `files`, and without files
    outside of this directory. Return None if the manifest has none of `files`."""
    if manifest.files.keys() & files.names.keys():
        return manifest
    tag = f"{files.base.resolve().name}/"
    own = {n.removeprefix(tag): d for n, d in manifest.files.items() if n.startswith(tag)}
    if not own.keys() & files.names.keys():
        own = {f"{manifest.name}/{name}": digest for name, digest in manifest.files.items()}
    return replace(manifest, files=own) if own.keys() & files.names.keys() else None


def sidecars_of(files: CheckpointFiles) -> Iterator[tuple[Path, bool]]:
    """Yield each path where a manifest of the checkpoint may be, with a flag. The path is next to
    the checkpoint, next to the run's directory that contains it, or in the run's directory next to
    the tag's directory.

    If the flag is True, a manifest at this path may describe another checkpoint, and is used only
    if it lists `files`.
    """
    yield sidecar_of(files), False
    if files.subject.is_dir():
        base = files.base.resolve()
        yield sidecar_of_path(base.parent), True
        for folder in dict.fromkeys(name.partition("/")[0] for name in files.names if "/" in name):
            yield sidecar_of_path(base / folder), True


@dataclass(frozen=True)
class WrittenRecord:
    """The record inside an output of zerotools.

    `command` is the zerotools command that wrote the output. `files` are the digests of its files,
    keyed by name.
    """

    path: Path
    command: str
    files: Mapping[str, FileDigest]

    def conflict(self, manifest: DigestManifest) -> str | None:
        """Return the name of a file that has another digest in the manifest, or None. With such a
        file, the manifest belongs to another checkpoint."""
        for name, own in self.files.items():
            other = manifest.files.get(name)
            if other is not None and other != own:
                return name
        return None


def written_record(files: CheckpointFiles, root: Path) -> WrittenRecord | None:
    """Return the record inside a verified output; None for other checkpoints, and for an output at
    `root` that was thinned later.

    Raises:
        BadFile: the record is damaged.
    """
    if not files.subject.is_dir() or is_thinned(root):
        return None
    written = read_written(files.base)
    if written is None or written.algorithm != ALGORITHM:
        return None
    digests = {name: FileDigest(size, digest) for name, (size, digest) in written.files.items()}
    path = files.base / MARKER
    if not digests.keys() & files.names.keys():
        raise BadFile(
            f"{path} has digests of files that are not here: it was copied from another output; "
            "remove it"
        )
    return WrittenRecord(path, written.command, digests)
