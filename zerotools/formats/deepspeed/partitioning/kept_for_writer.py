"""Values that the DeepSpeed reader stores in `Checkpoint.native` for the DeepSpeed writer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import Unsupported
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.tag_file_names import name_for_rank


@dataclass(frozen=True, slots=True)
class DeepSpeedNative:
    """Values that the DeepSpeed reader stores for the DeepSpeed writer.

    `mp_shards` are the model-parallel ranks in order; each pipeline stage consists of
    `tensor_ranks` of them. `frozen` are the names of the parameters that were not trained.
    `is_elastic` means that the saved partitions do not depend on the number of ranks.
    """

    mp_shards: Sequence[MpShard]
    tensor_ranks: int
    frozen: frozenset[str]
    is_elastic: bool


def files_of_all_ranks(source: Checkpoint, name: str) -> Iterator[str]:
    """Yield the name of the file `name`, and of the same file of every other data-parallel rank.

    Files with a problem are left out, because an older save may have written them. In a run without
    model parallelism, the mp rank in a file name is ignored, because it is only the rank's number
    among the ranks that share a sequence.
    """
    mp_rank = 0 if len(native_of(source).mp_shards) == 1 else None
    faulty = {problem.file for problem in source.problems}
    same = name_for_rank(name, 0, mp_rank)
    for other in sorted(source.files):
        if other not in faulty and name_for_rank(other, 0, mp_rank) == same:
            yield other


def refuse_stacked_experts(source: Checkpoint) -> None:
    """Raise an error if `source`, which may be in any of DeepSpeed's formats, has experts of
    AutoEP.

    zerotools can write such experts only from DeepSpeed's rank files to rank files.

    Raises:
        Unsupported: `source` has such experts.
    """
    native = source.native
    shards = native.mp_shards if isinstance(native, DeepSpeedNative) else ()
    model = shards[0].model if shards else getattr(native, "model", None)
    if isinstance(model, ModelStates) and model.stacked_experts.layers:
        raise Unsupported(
            f"{source.origin.path} has experts of AutoEP, which only zerotools reshard writes to "
            "rank files, from rank files; "
            + (
                "make a universal checkpoint, which DeepSpeed loads on any number of ranks, with "
                "zerotools convert --to universal"
                if shards
                else "DeepSpeed 0.19.8 loads this universal checkpoint on any number of ranks, "
                'with "checkpoint": {"load_universal": true} in its configuration'
            )
        )


def native_of(checkpoint: Checkpoint) -> DeepSpeedNative:
    """Return the values that the DeepSpeed reader stored in a checkpoint that `reading.read`
    returned.
    """
    native = checkpoint.native
    if not isinstance(native, DeepSpeedNative):
        raise TypeError(f"{checkpoint.origin.path} is not a native DeepSpeed checkpoint")
    return native
