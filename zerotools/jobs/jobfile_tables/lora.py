"""`[lora]` of the job file: training of small matrices (adapters) next to frozen weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.core.training_memory_layout import NF4
from zerotools.jobs.binding.declaration import key


@dataclass(frozen=True, kw_only=True)
class LoraSpec:
    """`[lora]`: low-rank adapters by peft. Only the adapters are trained; the other weights do not
    change. Without `rank`, the job has no adapters.
    """

    rank: int | None = key("The rank of the adapters.", default=None, minimum=1)
    alpha: float | None = key(
        "An adapter is multiplied by `alpha / rank` and added to its weight; default: twice "
        "`rank`.",
        default=None,
        above=0,
    )
    dropout: float = key(
        "Dropout before the adapters, below 1; off in a job with `data.preferences`.",
        default=0.0,
        minimum=0,
    )
    frozen_precision: str = key(
        "Type of the frozen weights. `train`: the type of `train.precision`; weights of another "
        "type are rounded once. `fp32`: 4 bytes per weight, without rounding. `nf4` (QLoRA): "
        "bitsandbytes stores the linear layers except the head in 4 bits; other weights are as "
        "with `train`. `nf4` needs `model.path`, and checkpoints hold only the adapters.",
        default="train",
        allowed=("train", "fp32", NF4),
        stored_default="fp32",
        engine="torch",
    )
    double_quant: bool = key(
        'With `frozen_precision = "nf4"`: also store the scales of the weights in 8 bits.',
        default=True,
        stored_default=True,
        engine="torch",
    )
    target_modules: tuple[str, ...] = key(
        "Names, or ends of names, of the linear layers that get an adapter; default: the layers "
        "that peft chooses for the model.",
        default=(),
    )

    path: str | None = key(
        "The directory of an adapter that peft saved (`adapter_config.json` and "
        "`adapter_model.safetensors`). Training begins with its values; its rank, scale and "
        "layers must match this table. Default: new adapters, which do not change the model at "
        "the start.",
        default=None,
        stored_default=None,
        path=True,
        engine="torch",
    )

    @property
    def packs_frozen(self) -> bool:
        """True if the frozen linear layers store their weights in a quantised form."""
        return self.rank is not None and self.frozen_precision == NF4

    @property
    def scale(self) -> float:
        """The factor by which an adapter's product is multiplied before it is added to the
        weight.
        """
        rank = self.rank or 1
        return (2 * rank if self.alpha is None else self.alpha) / rank


def check_lora(spec: LoraSpec) -> Iterator[str]:
    """Yield the problems with `[lora]`."""
    if spec.rank is None and spec != LoraSpec():
        yield ("lora.rank: is missing; set it, or leave [lora] out: adapters need a rank")
    if spec.dropout >= 1:
        yield f"lora.dropout = {spec.dropout}: must be less than 1"
