"""A note on what cannot be proved about the source of an export."""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.counts import counted
from zerotools.core.errors import BadFile
from zerotools.formats import FormatTable
from zerotools.formats.format import Format
from zerotools.ops.verification.checkpoint_files import files_of
from zerotools.ops.verification.manifests.digest_manifest import sidecar_of
from zerotools.runs.file_names import MANIFEST


def unproved_save(checkpoint: Checkpoint, form: Format, table: FormatTable) -> list[str]:
    """Return a sentence on files of ranks that do not record their save, if no manifest covers
    them."""
    if checkpoint.origin.world_size in (None, 1) or len(checkpoint.files) < 2:
        return []
    root = checkpoint.root
    if any((each / MANIFEST).is_file() for each in (root, root.parent)):
        return []
    if sidecar_of(files_of(checkpoint, table)).is_file():
        return []
    try:
        left = checkpoint.files.keys() - set(form.files_of_one_save(checkpoint))
    except BadFile:  # reported when it is read
        return []
    if not left:
        return []
    return [
        (
            f"cannot check whether {counted(len(left), 'file')} of {len(checkpoint.files)} are "
            "from one save: to record it, run zerotools verify --write-manifest right after each "
            "save"
        )
    ]
