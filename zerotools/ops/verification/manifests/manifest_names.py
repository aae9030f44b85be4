"""The names of files in a manifest, which may be of the tag directory or of the run's around it.

run.zerotools.json               has   global_step6/mp_rank_00_model_states.pt, rng_state_0.pth
run/global_step6.zerotools.json  has   mp_rank_00_model_states.pt
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from zerotools.ops.verification.checkpoint_files import CheckpointFiles
from zerotools.ops.verification.manifests.digest_manifest import (
    DigestManifest,
    sidecar_of,
    sidecar_of_path,
)


def aligned(manifest: DigestManifest, files: CheckpointFiles) -> DigestManifest | None:
    """Return the manifest with names as in `files`, and without files around these; None if it has
    none of them."""
    if manifest.files.keys() & files.names.keys():
        return manifest
    tag = f"{files.base.resolve().name}/"
    own = {n.removeprefix(tag): d for n, d in manifest.files.items() if n.startswith(tag)}
    if not own.keys() & files.names.keys():
        own = {f"{manifest.name}/{name}": digest for name, digest in manifest.files.items()}
    return replace(manifest, files=own) if own.keys() & files.names.keys() else None


def sidecars_of(files: CheckpointFiles) -> Iterator[tuple[Path, bool]]:
    """Yield the paths at which a manifest of a checkpoint may lie: next to it, next to the run's
    directory around it, or in that next to the tag. The flag means that it counts only if it is of
    these files."""
    yield sidecar_of(files), False
    if files.subject.is_dir():
        base = files.base.resolve()
        yield sidecar_of_path(base.parent), True
        for folder in dict.fromkeys(name.partition("/")[0] for name in files.names if "/" in name):
            yield sidecar_of_path(base / folder), True
