"""The kernel of attention that a job takes on a GPU, in words.

torch's scaled_dot_product_attention has a flash kernel in 16 bits from compute capability 8.0 on.
Elsewhere the trainer repeats keys and values, and torch takes its memory-efficient kernel
(`zerotoolsd.trainer.model.attention_choice`).
"""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.jobs.tables.model import AUTO
from zerotools.jobs.tables.spec import JobSpec
from zerotools.ops.estimate.activation_memory import EAGER, REPEATED, MicroBatch
from zerotools.sensors.snapshot import BF16_CAPABILITY, Snapshot

FLASH, EFFICIENT = "torch's flash kernel", "torch's memory-efficient kernel with repeated keys"
SCORES = "the scores of all pairs of tokens are kept"


def assumed(micro: MicroBatch) -> str | None:
    """Return the kernel that an estimate assumes, if it is not the flash kernel."""
    if micro.attention == EAGER:
        return f"attention: eager, so {SCORES}"
    if micro.attention != REPEATED:
        return None
    if micro.precision == "fp32":
        return f"attention: {EFFICIENT}; no GPU has a flash kernel for fp32"
    return (
        f"attention: {EFFICIENT}, as on V100, T4 and RTX 20; GPUs of compute capability 8.0 and "
        "newer have a flash kernel, which keeps less"
    )


def kernels_of(spec: JobSpec, snapshot: Snapshot) -> str | None:
    """Return the kernel of a job on each kind of GPU of this machine; None: no GPU is known."""
    wanted = spec.model.attention
    if wanted == EAGER:
        return f"attention: eager, so {SCORES}"
    if wanted not in (None, AUTO, "sdpa"):
        return f"attention: {wanted}"
    found = dict.fromkeys(_by_card(spec.train.precision, snapshot))
    return f"attention: {'; '.join(found)}" if found else None


def _by_card(precision: str, snapshot: Snapshot) -> Iterator[str]:
    for gpu in snapshot.gpus:
        if gpu.compute_capability is None:
            continue
        has_flash = precision != "fp32" and gpu.compute_capability >= BF16_CAPABILITY
        capability = ".".join(map(str, gpu.compute_capability))
        where = f"{gpu.name or 'a GPU'} (compute capability {capability})"
        yield f"{FLASH if has_flash else EFFICIENT} on {where}"
