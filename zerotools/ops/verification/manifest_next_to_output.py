"""The manifest of digests next to an output: `model.zerotools.json` next to `model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.io.files.directory_entries import is_there
from zerotools.io.files.metadata_memory_limit import data_in
from zerotools.io.files.open_source import RemotePath
from zerotools.io.output.manifest_path import sidecar_of_path

if TYPE_CHECKING:  # most outputs have no manifest, and start without its modules
    from zerotools.ops.verification.digest_manifest import DigestManifest


def check_sidecar(destination: Path, *, overwrite: bool) -> None:
    """Raise an error if the file name of the new output's manifest is already in use.

    With `overwrite`, an existing manifest may be replaced. The manifest of an output that was
    removed may always be replaced.

    Raises:
        BadRequest: a file has this name, and may not be replaced.
    """
    path = sidecar_of_path(destination)
    if not is_there(path) or _is_left_over(path, destination):
        return
    if not overwrite:
        raise BadRequest(
            f"{path} exists, and would be used as the manifest of the output; remove it if it "
            "belongs to an earlier output, choose another output, or pass --overwrite"
        )
    from zerotools.ops.verification.digest_manifest import read_digest_manifest

    try:
        read_digest_manifest(path, lambda: data_in(destination))
    except (BadFile, Unsupported, OSError):
        raise BadRequest(
            f"{path} is not a manifest that zerotools reads, so --overwrite does not replace it; "
            "remove it, or choose another output"
        ) from None


def _is_left_over(path: Path, destination: Path) -> bool:
    """Return whether `path` is the manifest of an earlier output at `destination` that was removed.
    A manifest that records the name of another output is not left over, because the user may still
    need it.
    """
    if is_there(destination) or not path.is_file() or path.is_symlink():
        return False
    from zerotools.ops.verification.digest_manifest import read_digest_manifest

    try:
        return read_digest_manifest(path, lambda: 0).name == destination.name
    except (BadFile, Unsupported, OSError):
        return False


def put_sidecar(manifest: DigestManifest | None, destination: Path) -> Path | None:
    """Write the manifest next to a finished output, and return its path.

    `manifest` is None if the output was not verified. Then a manifest of an earlier output with the
    same name is removed.

    Raises:
        BadRequest: the manifest cannot be written.
    """
    path = sidecar_of_path(destination)
    try:
        if manifest is None:
            _remove(path)
            return None
        from zerotools.ops.verification.digest_manifest import put_digest_manifest

        put_digest_manifest(manifest, path)
    except OSError as error:
        raise BadRequest(
            f"{destination} is complete and verified, but {path} cannot be written: "
            f"{error.strerror}; write it with zerotools verify --write-manifest"
        ) from error
    return path


def _remove(path: Path) -> None:
    if not isinstance(path, RemotePath):
        path.unlink(missing_ok=True)
    elif path.is_file():
        from zerotools.io.stores.store_path import remove_objects

        remove_objects([path])
