"""Remove the optimizer state from a universal checkpoint.

The files `zero/*/fp32.pt` stay. `zero/optimizer_state.pt` stays too, but without the moments and
steps that its stage-3 form contains. DeepSpeed reads whatever files a parameter has, so the masters
load unchanged. The masters always stay, because DeepSpeed's loaders read weights only from them.

Source: DeepSpeed `checkpoint/universal_checkpoint.py`, `load_hp_checkpoint_state`;
`runtime/zero/stage3.py`, `load_module_checkpoint_state_from_checkpoint_dir_stage3`.
"""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.target import FilePlan
from zerotools.core.thinning_changes import Keep, Thinning
from zerotools.formats.deepspeed.schema.tag_file_names import MASTER, ZERO
from zerotools.formats.deepspeed.universal.kept_for_writer import UniversalNative
from zerotools.formats.deepspeed.universal.optimizer_state import OPTIMIZER_STATE
from zerotools.formats.deepspeed.writing.thin import STAYS, without_state
from zerotools.io.torchzip.pt_file import repacked_file


def thin_universal(source: Checkpoint, keep: Keep) -> Thinning:
    """Plan how to remove the optimizer state from `source`, a result of the reader of universal
    checkpoints.
    """
    native = source.native
    assert isinstance(native, UniversalNative), "a universal checkpoint"
    removed = {
        name
        for name in source.files
        if name.startswith(f"{ZERO}/")
        and name != OPTIMIZER_STATE
        and not name.endswith(f"/{MASTER}")
    }
    rewritten: dict[str, FilePlan] = {}
    if native.saved.file is not None:
        left = without_state(native.saved.tree)
        if left is not native.saved.tree:
            rewritten[OPTIMIZER_STATE] = repacked_file(native.saved.file, left)
    kept = {key: key for key in source.tensors if key.role in STAYS}
    said = "the masters stay: DeepSpeed loads the weights of a universal checkpoint from them"
    notes = (said,) if keep == Keep.WEIGHTS and (removed or rewritten) else ()
    return Thinning(Keep.MASTERS, kept, frozenset(removed), rewritten, notes)
