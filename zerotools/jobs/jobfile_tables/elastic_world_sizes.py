"""Elastic jobs: the world sizes that a job may have, and its settings at each size.

At every size the job trains on the same sequences in the same order, because these depend only on
the seed and the step. Only the number of sequences per rank changes. Unless `micro_batch_size` is
set, a forward pass never has more sequences than at the largest size. So with fewer ranks, each
rank accumulates more passes and needs no more memory for activations.

Example: with `batch_size` 24 and `gpus = {min = 2, max = 8}`, each of 8 ranks has one pass of 3
sequences, each of 4 ranks has two passes of 3, and each of 2 ranks has four passes of 3. Each of 6
ranks has two passes of 2, because 3 does not divide its 4 sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.jobfile_tables.spec import MOST_RANKS, JobSpec, SizeRange

_MOST_LISTED = 12


def at_size(spec: JobSpec, size: int) -> JobSpec:
    """Return the job file for an attempt with `size` ranks.

    A job that is not elastic is returned unchanged.
    """
    if spec.size_range is None:
        return spec
    spec, whole = _with_ranks(spec, size), spec
    return with_passes_of(spec, size, max((size, *whole.sizes)))


def with_passes_of(spec: JobSpec, size: int, largest: int) -> JobSpec:
    """Return `spec` with a micro batch for `size` ranks: a forward pass has no more sequences than
    with `largest` ranks. If `micro_batch_size` is set, return `spec`."""
    if spec.train.micro_batch_size is not None:
        return spec
    # Evaluation uses the same batch as if the job had no micro batch.
    evaluated = replace(spec.eval, batch_size=spec.eval.batch_size or 1)
    together = spec.zero.same_data_ranks
    shares, most = (max(1, count // together) for count in (size, largest))
    passes = _pass_of(spec.train.batch_size, shares, most)
    train = replace(spec.train, micro_batch_size=passes)
    return replace(spec, train=train, eval=evaluated)


def _with_ranks(spec: JobSpec, size: int) -> JobSpec:
    return replace(spec, ranks=size) if spec.device == "cpu" else replace(spec, gpus=size)


def _pass_of(batch: int, shares: int, most_shares: int) -> int:
    """Return the number of sequences in a forward pass, if a step's `batch` is divided by `shares`.

    The result divides the number of sequences in a share. It is at most the number in a share at
    the largest size, `most_shares`.
    """
    whole, most = batch // shares, batch // most_shares
    return max((count for count in range(1, most + 1) if whole % count == 0), default=1)


def largest_spec(spec: JobSpec) -> JobSpec:
    """Return the job file for the largest number of ranks that the job may have."""
    return at_size(spec, max(spec.sizes, default=spec.world_size))


def check_sizes(spec: JobSpec) -> Iterator[str]:
    """Yield each problem with the range of ranks of an elastic job."""
    wanted = spec.size_range
    if wanted is None:
        return
    key = "ranks" if spec.device == "cpu" else "gpus"
    if spec.engine != "torch":
        yield f"{key} = {wanted}: {_why_rigid(spec.engine)} set one number, {key} = {wanted.max}"
    elif wanted.min < 1:
        yield f"{key}.min = {format_value(wanted.min)}: must be at least 1"
    elif wanted.max > MOST_RANKS:
        yield f"{key}.max = {format_value(wanted.max)}: must be at most {MOST_RANKS}"
    elif wanted.min > wanted.max:
        yield (
            f"{key}.min = {wanted.min}: must be at most {key}.max, which is {wanted.max}; "
            "exchange them"
        )
    else:
        for name in dict.fromkeys(("min", "max")) if wanted.min < wanted.max else ("min",):
            yield from _check_end(spec, key, name, wanted)


def _check_end(spec: JobSpec, key: str, name: str, wanted: SizeRange) -> Iterator[str]:
    size, sizes = getattr(wanted, name), spec.sizes
    if size in sizes:
        return
    listed = ", ".join(map(str, sizes[:_MOST_LISTED])) + ", ..." * (len(sizes) > _MOST_LISTED)
    do = (
        f"from {wanted.min} to {wanted.max}, the possible numbers are {listed}"
        if sizes
        else (
            f"no number from {wanted.min} to {wanted.max} is possible; change {key} or "
            "train.batch_size"
        )
    )
    yield f"{key}.{name} = {size}: {_why_uneven(spec, size)}; {do}"


def _why_uneven(spec: JobSpec, size: int) -> str:
    batch, micro = spec.train.batch_size, spec.train.micro_batch_size
    together = spec.zero.same_data_ranks
    if size % together:
        return f"is not a multiple of the {together} ranks that compute one sequence together"
    shares = size // together
    whose = "rank" if together == 1 else f"group of {together} ranks"
    if batch % shares:
        return f"does not divide train.batch_size = {batch} into whole sequences for each {whose}"
    if micro is not None and (batch // shares) % micro:
        return (
            f"gives each {whose} {batch // shares} of the {batch} sequences of a step, which is "
            f"not a multiple of train.micro_batch_size = {micro}"
        )
    return f"is not a multiple of zero.shard_size = {spec.zero.shard_size}"


def _why_rigid(engine: str) -> str:
    if engine == "deepspeed":
        return (
            'the number of ranks of an engine = "deepspeed" job cannot change while it runs, '
            "because DeepSpeed does not load a checkpoint of another world size (zerotools "
            'reshard converts it by hand); use engine = "torch", which allows elastic jobs, or'
        )
    return (
        'the number of ranks of an engine = "script" job cannot change while it runs, because '
        "zerotools cannot divide the batch of your program;"
    )
