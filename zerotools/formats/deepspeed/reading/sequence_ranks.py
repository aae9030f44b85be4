"""The files of sequence-parallel ranks, which have different `mp_rank` numbers in their names.

With Ulysses, DeepSpeed 0.18 names the files of a rank by its number among the ranks that share a
sequence. Four ranks in pairs:

    zero_pp_rank_0_mp_rank_00_optim_states.pt    zero_pp_rank_1_mp_rank_01_optim_states.pt
    zero_pp_rank_2_mp_rank_00_optim_states.pt    zero_pp_rank_3_mp_rank_01_optim_states.pt

All four share the flat buffers, and `mp_world_size` is 1. DeepSpeed 0.19.8 names all of them
`mp_rank_00`.

Source: DeepSpeed 0.18.9 `runtime/engine.py`: `_get_zero_ckpt_name`, `_get_ckpt_name`;
`runtime/sequence_parallel/parallel_state_sp.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from zerotools.formats.deepspeed.schema.file_names import TagListing


def with_sequence_ranks(listing: TagListing, size: int) -> TagListing:
    """Return the listing of a run with `size` ranks and no model parallelism, with all files at
    model-parallel rank 0. Files that do not exactly fill the gaps among its ranks stay in their
    position: they are of another run."""
    optim_files, models = dict(listing.optim_files), dict(listing.models)
    widths = [listing.sequence_ranks]
    for spelling in {spelling for _, _, spelling in optim_files}:
        width = _width({(mp, dp) for mp, dp, spelt in optim_files if spelt == spelling}, size)
        for mp, dp, spelt in [*optim_files]:
            if width and spelt == spelling and mp and dp < size:
                optim_files[0, dp, spelt] = optim_files.pop((mp, dp, spelt))
        widths.append(width)
    width = _width({(mp, dp) for mp, dp in models if dp is not None}, size)
    for key, name in listing.models.items():
        mp, rank = key
        if width and rank is not None and mp and rank < size:
            del models[key]
            models[0, rank] = name
    most = max(*widths, width)
    return replace(listing, optim_files=optim_files, models=models, sequence_ranks=most)


def _width(names: Collection[tuple[int, int]], size: int) -> int:
    """Return the number of ranks that share a sequence, from the files (mp rank, dp rank). Return 0
    if none do, or if two files would be of one rank."""
    own = [(mp, dp) for mp, dp in names if dp < size]
    most = max((mp for mp, _ in own), default=0)
    if not most or len({dp for _, dp in own}) < len(own):
        return 0
    widths = (n for n in range(most + 1, size + 1) if not size % n)
    return next((n for n in widths if all(dp % n == mp for mp, dp in own)), 0)
