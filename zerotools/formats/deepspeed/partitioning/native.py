"""The values of a DeepSpeed checkpoint that only writers of this format need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import Unsupported
from zerotools.formats.deepspeed.partitioning.mp_rank import MpShard
from zerotools.formats.deepspeed.schema.file_names import name_for_rank
from zerotools.formats.deepspeed.schema.model_states import ModelStates


@dataclass(frozen=True, slots=True)
class DeepSpeedNative:
    """`mp_shards` are the model-parallel ranks in order; `tensor_ranks` of them form one pipeline
    stage. `frozen` are the parameters that were not trained. `is_elastic` means that the partitions
    are not tied to a number of ranks."""

    mp_shards: Sequence[MpShard]
    tensor_ranks: int
    frozen: frozenset[str]
    is_elastic: bool


def files_of_all_ranks(source: Checkpoint, name: str) -> Iterator[str]:
    """Yield the file `name` and those of the other data-parallel ranks. Omit files with a problem,
    because they may be of an older save. Without model parallelism, the mp rank in a name is the
    rank among those that share a sequence."""
    mp_rank = 0 if len(native_of(source).mp_shards) == 1 else None
    faulty = {problem.file for problem in source.problems}
    same = name_for_rank(name, 0, mp_rank)
    for other in sorted(source.files):
        if other not in faulty and name_for_rank(other, 0, mp_rank) == same:
            yield other


def refuse_stacked_experts(source: Checkpoint) -> None:
    """Refuse to make files of ranks of AutoEP's experts, but of files of ranks. `source` was read
    from any files of DeepSpeed's.

    Raises:
        Unsupported: it has some.
    """
    native = source.native
    shards = native.mp_shards if isinstance(native, DeepSpeedNative) else ()
    model = shards[0].model if shards else getattr(native, "model", None)
    if isinstance(model, ModelStates) and model.stacked_experts.layers:
        raise Unsupported(
            f"{source.origin.path} has experts of AutoEP, and zerotools writes files of ranks for "
            "them only from files of ranks (zerotools reshard); "
            + (
                "make a universal checkpoint, which DeepSpeed loads on any number of ranks, with "
                "zerotools convert --to universal"
                if shards
                else "DeepSpeed 0.19.8 loads this universal checkpoint on any number of ranks, "
                'with "checkpoint": {"load_universal": true} in its configuration'
            )
        )


def native_of(checkpoint: Checkpoint) -> DeepSpeedNative:
    """Return the native values of a checkpoint that `reading.read` returned."""
    native = checkpoint.native
    if not isinstance(native, DeepSpeedNative):
        raise TypeError(f"{checkpoint.origin.path} is not a native DeepSpeed checkpoint")
    return native
