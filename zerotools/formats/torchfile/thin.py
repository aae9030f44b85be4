"""Remove the optimizers from torch files.

A file that contains only an optimizer is deleted. A file that contains a model and an optimizer is
written again. Separate optimizer files of a Hugging Face directory are deleted too.
"""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import Unsupported
from zerotools.core.target import FilePlan
from zerotools.core.thinning_changes import Keep, Thinning
from zerotools.formats.torchfile.sort_state_dict import (
    STATE_ROLE,
    is_optimizer,
    sort_tensors,
    without_optimizers,
)
from zerotools.io.huggingface.model_sidecars import optimizer_files
from zerotools.io.torchzip.pt_file import TorchFile, repacked_file

_STAYS = ("param", "param16", "buffer", "state")


def thin(source: Checkpoint) -> Thinning:
    """Plan how to remove the optimizers from `source`, a result of the reader of torch files.

    Raises:
        Unsupported: without the optimizers, it would be unknown which tensors are weights.
    """
    removed: set[str] = set()
    rewritten: dict[str, FilePlan] = {}
    lost: set[str] = set()
    if source.origin.path.is_dir():
        removed |= optimizer_files(source.root)
    for name in source.files:
        file = TorchFile.open(source.root, name)
        if is_optimizer(file.tree):
            removed.add(name)
            continue
        left = without_optimizers(file.tree)
        if left is not file.tree:
            lost |= _state_lost(file, left)
            rewritten[name] = repacked_file(file, left)
    stays = (key for key in source.tensors if key.role in _STAYS)
    kept = {key: key for key in stays if not (key.role == STATE_ROLE and key.name in lost)}
    return Thinning(Keep.MASTERS, kept, frozenset(removed), rewritten)


def _state_lost(file: TorchFile, left: object) -> set[str]:
    """Return the names of tensors of other state that are removed together with the optimizers,
    because the tensors of several optimizers in a file are read as other state.

    Raise Unsupported if, without the optimizers, other tensors would be read as the model.
    """
    before, after = sort_tensors(file.tree), sort_tensors(left)
    if before.wrapper != after.wrapper or before.weights.keys() != after.weights.keys():
        raise Unsupported(
            f"{file.path}: without its optimizer its weights could not be distinguished from "
            "other tensors; write the weights into a separate file with zerotools convert --to "
            "torch"
        )
    return before.rest.keys() - after.rest.keys()
