"""Read the masters and the optimizer state of a stage-3 run from the swap files that its ranks had
on NVMe.

With `offload_optimizer` on NVMe, each sub-group of 1 MiB or more has a file for its masters and one
for each kind of state. Each file holds one rank's partition, followed by padding. DeepSpeed writes
the other files of a checkpoint first, and then copies the swap files into the tag directory:

    offloaded_tensors/rank00/0_7.tensor.swp              masters of a sub-group
    offloaded_tensors/rank00/exp_avg-0_7.tensor.swp      its first moments

The rank in the path is the global rank. 0 and 7 are DeepSpeed's numbers of the first and the last
parameter. These numbers follow the order in which the model was built, and no file lists them. But
the optimizer file still lists the tensors of the sub-group, without elements. Each has an attribute
`ds_id`, which torch saves too and which contains the file name.

Step counts are in the optimizer file. All swap files are in fp32, whatever the dtype of the tensors
without elements is. Swap files of a run with 16-bit masters are not read, because it is not known
which dtype the moments then have.

Versions: 0.13.0 is the first that saves swap files; up to 0.13.2 a file name has the numbers of all
parameters. Before 0.18.0, all ranks copy into one directory, and the second rank fails. So only a
run of one rank has a complete checkpoint.

Source: DeepSpeed `runtime/zero/stage3.py` (`_create_fp32_partitions`), `runtime/engine.py`
(`save_checkpoint`), `runtime/swap_tensor/optimizer_utils.py`; torch `_tensor.py`: `__reduce_ex__`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from zerotools.core.checkpoint import Problem
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import FLOAT32
from zerotools.formats.deepspeed.partitioning.flat_groups import ranks_of_group
from zerotools.formats.deepspeed.partitioning.flat_layout import FlatLayout
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.ds_config import masters_type
from zerotools.formats.deepspeed.schema.model_states import Shapes
from zerotools.formats.deepspeed.schema.optim_states import MASTERS, FlatPartition, OptimStates

SWAPPED = "offloaded_tensors"
"""The directory in a tag into which DeepSpeed copies the swap files of all ranks."""
_SUFFIX = ".tensor.swp"


def with_swap_files(
    directory: Path,
    optim_states: Sequence[OptimStates | None],
    groups: Sequence[Shapes],
    problems: list[Problem],
) -> list[OptimStates | None]:
    """Return the optimizer files, completed with the partitions that are in swap files of the tag
    directory.

    The run must not have model parallelism. If a swap file is missing or too short, a problem is
    added to `problems`, and the partition stays without elements.
    """
    found: list[OptimStates | None] = []
    for rank, optim in enumerate(optim_states):
        if optim is None or not any(optim.swapped) or _has_16_bit_masters(optim):
            found.append(optim)
            continue
        sizes = [
            FlatLayout(shapes, (), ranks_of_group(number, optim_states, optim), None)
            for number, shapes in enumerate(groups)
        ]
        folder = _folder(directory, rank, len(optim_states))
        masters, states = [*optim.masters], [dict(state) for state in optim.states]
        for number, (names, layout) in enumerate(zip(optim.swapped, sizes, strict=False)):
            for role, name in names.items():
                file = f"{folder}/{name}{_SUFFIX}"
                partition = FlatPartition(file, 0, layout.partition_numel, FLOAT32)
                problem = _problem(directory, partition)
                if problem is not None:
                    problems.append(problem)
                elif role == MASTERS:
                    masters[number] = partition
                else:
                    states[number][role] = partition
        found.append(replace(optim, masters=masters, states=states))
    return found


def _has_16_bit_masters(optim: OptimStates) -> bool:
    return masters_type(optim.file.tree.get(state_dict_keys.DS_CONFIG)) != FLOAT32


def original_folder(rank: str) -> str:
    """Return the relative path of the directory in which a rank kept its swap files during the
    run."""
    return f"nvme_path/zero_stage_3/optimizer/rank{rank}"


def swap_files(optim: OptimStates) -> Iterator[str]:
    """Yield the names of the swap files that hold partitions of this rank."""
    for master, states in zip(optim.masters, optim.states, strict=True):
        for partition in (master, *states.values()):
            if partition.file != optim.file.name:
                yield partition.file


def _folder(directory: Path, rank: int, ranks: int) -> str:
    """Return the directory of a rank's swap files in the checkpoint, relative to the tag
    directory.
    """
    own = f"{SWAPPED}/rank{rank:02d}"
    return SWAPPED if ranks == 1 and not (directory / own).is_dir() else own


def _problem(directory: Path, partition: FlatPartition) -> Problem | None:
    path, needed = directory / partition.file, partition.numel * partition.dtype.itemsize
    try:
        size = path.stat().st_size
    except OSError as error:
        message = (
            f"{path} cannot be read ({error.strerror}). Put it back; if the run has made no step "
            f"since this save, copy it from {original_folder('N')} of the rank"
        )
    else:
        if size >= needed:  # DeepSpeed does not truncate a longer, older file
            return None
        message = (
            f"{path} has {count_text(size, 'byte')}, but its partition needs {needed}; copy or "
            "download it again"
        )
    return Problem(message, partition.file)
