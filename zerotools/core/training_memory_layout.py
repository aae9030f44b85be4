"""The memory layout of a training run: for each kind of tensor, its dtype, its device and the
number of ranks that share it.

The estimate (`ops/estimate`), the engine that allocates, the check of disk space and the memory
prediction of a rank all use the same `MemoryLayout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

DEVICE, HOST, DISK = "device", "host", "disk"
"""The kinds of memory that tensors may be in: GPU, host or disk."""
WEIGHTS, MASTERS, MOMENTS, GRADIENTS = "weights", "masters", "moments", "gradients"
"""The kinds of tensors that take memory."""

LOCAL, SHARDED = "local", "sharded"
"""Two ways to sum the gradients of a step's micro batches.

"local": each rank sums whole gradients, which are reduced once per step. "sharded": gradients are
reduced after each micro batch, and each rank sums its shard.
"""

UPDATE_BUCKET_BYTES = 64 << 20
"""The number of bytes of fp32 masters that engine `torch` updates in one go, summed over all ranks
that share the masters.
"""

ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
EIGHT_BIT_BLOCK, EIGHT_BIT_LEAST = 256, 4096
"""For optimizer moments in 8 bits: the number of elements of a row that share one scale, and the
number of elements of the smallest tensor that has such moments.
"""
NF4 = "nf4"
NF4_BLOCK, NF4_SCALES_BLOCK = 64, 256
"""For nf4: the number of elements that share one scale, and the number of 8-bit scales that share
a scale of their own.
"""
_TIERS = {"none": DEVICE, "cpu": HOST, "disk": DISK}


def has_eight_bit_moments(shape: tuple[int, ...]) -> bool:
    """Return whether the optimizer `adamw8bit` stores the moments of this weight in 8 bits. If
    not, it stores them in fp32.
    """
    return len(shape) > 1 and prod(shape) >= EIGHT_BIT_LEAST


def nf4_bytes(count: int, *, double_quant: bool) -> int:
    """Return the number of bytes that `count` elements need in nf4: half a byte for each element,
    plus the scales.

    Scales are fp32. With `double_quant`, they are stored in 8 bits, and have their own scales and
    an average.
    """
    scales = ceil(count / NF4_BLOCK)
    if not double_quant:
        return ceil(count / 2) + ITEM_BYTES["fp32"] * scales
    return ceil(count / 2) + scales + ITEM_BYTES["fp32"] * (ceil(scales / NF4_SCALES_BLOCK) + 1)


@dataclass(frozen=True)
class MemoryLayout:
    """The layout of parameters, gradients and optimizer state over `world_size` ranks.

    Attributes:
        precision: the dtype of the forward and backward pass, as in the job file.
        offload_optimizer, offload_params: "none", "cpu" or "disk".
        shard_size: at stages 2 and 3, the number of ranks that share one copy of the model; None:
            all ranks share one copy.
        accumulate: how gradients of several micro batches are added, "local" or "sharded"; None if
            a step has one micro batch.
        frozen_precision: "train" (frozen weights only in `precision`), "fp32" or "nf4". With "nf4",
            every rank holds all frozen weights of linear layers in 4 bits; other frozen weights are
            stored as with "train".
        double_quant: True if the scales of nf4 weights are stored in 8 bits.
        tensor_ranks: the number of consecutive ranks that compute a layer together. Each has a part
            of the weights that are split.
        has_adapters: True if a frozen model is trained through adapters.
    """

    stage: int
    world_size: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    has_momentum: bool = True
    offload_optimizer: str = "none"
    offload_params: str = "none"
    shard_size: int | None = None
    accumulate: str | None = None
    frozen_precision: str = "fp32"
    engine: str = "torch"
    tensor_ranks: int = 1
    double_quant: bool = True
    has_adapters: bool = False

    @property
    def packs_frozen(self) -> bool:
        """True if frozen linear layers have 4 bits. Only trained weights are saved then."""
        return self.frozen_precision == NF4

    @property
    def ranks_per_copy(self) -> int:
        """The number of ranks that together hold one copy of the tensors that the ZeRO stage
        shards.
        """
        return self.shard_size or self.world_size

    @property
    def weight_ranks(self) -> int:
        """The number of ranks over which engine `torch` shards each weight."""
        return self.ranks_per_copy if self.stage >= 2 else 1

    @property
    def replicates_weights(self) -> bool:
        """True if engine `torch` has several copies of the weights, one for each group of ranks."""
        return self.stage < 2 or self.shard_size is not None

    @property
    def update_ranks(self) -> int:
        """The number of ranks over which the optimizer state is sharded; each rank updates its own
        shard.
        """
        return self.ranks_per_copy if self.stage >= 1 else 1

    @property
    def state_copies(self) -> int:
        """The number of copies of the optimizer state over all ranks."""
        return self.world_size // self.update_ranks

    @property
    def params_tier(self) -> str:
        """The kind of memory that holds the weights between steps."""
        return _TIERS[self.offload_params]

    @property
    def state_tier(self) -> str:
        """The kind of memory that holds the optimizer state, and the fp32 masters if the run has
        them separately.

        If the parameters are on the host, so is the state, because the host then updates them.
        """
        if self.offload_optimizer == "disk":
            return DISK
        return DEVICE if (self.offload_optimizer, self.offload_params) == ("none", "none") else HOST

    @property
    def gradients_tier(self) -> str:
        """The kind of memory that holds the gradients of a step until the optimizer uses them."""
        return DEVICE if self.state_tier == DEVICE else HOST

    @property
    def has_masters(self) -> bool:
        """True if engine `torch` stores fp32 masters besides the weights that it computes with.

        If False, its fp32 weights are the masters, and 16-bit weights are gathered from them.

        Masters are separate if only the optimizer is offloaded. With a 16-bit `precision` and
        nothing offloaded, they are also separate in these cases:

        - at ZeRO stage 1;
        - if frozen weights have 16 or 4 bits, because FSDP2 gathers weights of one dtype together
          (early versions refuse weights of several dtypes);
        - on a single rank, if a step has one micro batch and the model has no adapters: separate
          masters then need no more memory than FSDP2's 16-bit copies.
        """
        is_half = self.precision != "fp32"
        alone = self.world_size == 1 and self.accumulate is None and not self.has_adapters
        apart = self.stage == 1 or self.frozen_precision != "fp32" or alone
        return self.params_tier == DEVICE and (
            self.offload_optimizer != "none" or (apart and is_half)
        )

    def has_master(self, *, is_trained: bool) -> bool:
        """Return whether engine `torch` stores a master of this weight."""
        return self.has_masters and (is_trained or self.frozen_precision == "fp32")

    @property
    def is_sharded(self) -> bool:
        """True if FSDP2 wraps the model of engine `torch`.

        On a single rank, FSDP2 is used only for one of these reasons: it casts weights to 16 bits
        block by block, copies weights from the host, or sums the gradients of micro batches before
        they are added to the masters' gradients.
        """
        computes_with_weights = self.precision == "fp32" or self.has_masters
        sums_first = self.has_masters and self.accumulate == LOCAL
        is_plain = self.params_tier == DEVICE and computes_with_weights and not sums_first
        return self.world_size > 1 or not is_plain

    @property
    def weights_dtype(self) -> str:
        """The dtype of engine `torch`'s weights between steps, and of their gradients."""
        return self.precision if self.has_masters else "fp32"

    @property
    def frozen_dtype(self) -> str:
        """The dtype of engine `torch`'s frozen weights between steps."""
        return self.weights_dtype if self.frozen_precision == "fp32" else self.precision

    @property
    def gradients_dtype(self) -> str:
        """The dtype of engine `torch`'s gradients until the optimizer uses them. It is fp32 if each
        rank adds its shard of the gradients over several micro batches (`SHARDED`).
        """
        return "fp32" if self.accumulate == SHARDED else self.weights_dtype

    @property
    def keeps_gathered(self) -> bool:
        """True if engine `torch` keeps gathered weights from the forward pass to the backward
        pass. If False, it gathers them again for the backward pass.
        """
        return self.stage == 2 and self.ranks_per_copy > 1
