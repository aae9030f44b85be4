"""Computes the model FLOPs utilization (MFU): useful operations per second, divided by the peak of
the GPUs.

Aakanksha Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", appendix B: a token
costs 6N + 12·L·H·Q·T operations, forward and backward, for N parameters, L layers of H heads of
size Q (H·Q is the hidden size) and sequences of T tokens. Operations that are repeated for
activation checkpointing do not count. The masked half of the attention is not subtracted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from zerotoolsd.trainer.rank.process_group import WorldGroup

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class Utilization:
    """The numbers from which the MFU of a run is computed.

    `flops_per_token` is the number of operations of the model per token. `peak` is how many
    operations per second all GPUs of the run can do together.
    """

    flops_per_token: float
    peak: float

    def of(self, tokens_per_second: float) -> float:
        """Return the MFU, from 0 to 1. `tokens_per_second` counts the tokens of all ranks."""
        return tokens_per_second * self.flops_per_token / self.peak


def make_utilization(
    group: WorldGroup,
    config: Any,
    parameters: tuple[int, int],
    sequence_length: int,
    precision: str,
) -> Utilization | None:
    """Return the `Utilization` of a run; None if a value is unknown, as on CPUs.

    All ranks call it together. `parameters` are the numbers of (trained, frozen) parameters. If
    sequences have different lengths, `sequence_length` is 0, and the operations of the attention do
    not count.
    """
    if group.device.type != "cuda":
        return None
    peaks = group.gathered(peak_flops(torch.cuda.get_device_name(group.device), precision))
    flops = flops_per_token(config, parameters, sequence_length)
    known = [peak for peak in peaks if peak is not None]
    if flops is None or len(known) < len(peaks):
        return None
    return Utilization(flops, sum(known))


def flops_per_token(config: Any, parameters: tuple[int, int], sequence_length: int) -> float | None:
    """Return the number of operations per token, forward and backward; None if the formula does not
    apply.

    A frozen parameter counts 4 operations instead of 6. The formula does not apply to
    encoder-decoders, nor to models in which a token uses only some of the weights.
    """
    text = config.get_text_config()
    layers, hidden = (getattr(text, name, None) for name in ("num_hidden_layers", "hidden_size"))
    experts = (getattr(text, name, None) or 0 for name in _EXPERTS)
    if not layers or not hidden or config.is_encoder_decoder or max(experts) > 1:
        return None
    trained, frozen = parameters
    # A frozen weight has no gradient of its own, and passes on that of its input.
    attention = float(12 * layers * hidden * sequence_length)
    return 6.0 * trained + 4.0 * frozen + attention


# The peak floating-point operations per second of a GPU, by its name.
#
# The values are for dense matrix products (no 2:4 sparsity), in units of 10^12 per second. The
# 16-bit values are for tensor cores with fp32 accumulation. The fp32 values are without tensor
# cores, which is torch's default. Sources are NVIDIA's papers: the datasheets of V100, V100S, T4,
# A10, A30, A40, A100, L4, L40, L40S, H100, H200, GH200, HGX B200, and RTX 6000 Ada; the GA102
# whitepaper (RTX 3090 and 3090 Ti, RTX A6000); the Ada whitepaper (RTX 4080 and 4090). If a
# datasheet has only the value for sparse matrices, half of this value is used.

TERA = 1e12


class Peak(NamedTuple):
    """The peak operations per second of a GPU, in units of 10^12.

    `half` is for fp16, and for bf16 if the GPU supports it. `fp32` is None if it is unknown.
    """

    half: float
    fp32: float | None
    has_bf16: bool = True


_PEAKS: tuple[tuple[str, Peak], ...] = (
    (r"Tesla V100-SXM[23]-\d+GB(-LS)?", Peak(125, 15.7, has_bf16=False)),
    (r"Tesla V100-PCIE-\d+GB", Peak(112, 14, has_bf16=False)),
    (r"Tesla V100S-PCIE-\d+GB", Peak(130, 16.4, has_bf16=False)),
    (r"(Tesla )?T4", Peak(65, 8.1, has_bf16=False)),
    (r"A10", Peak(125, 31.2)),
    (r"A30", Peak(165, 10.3)),
    (r"A40", Peak(149.7, 37.4)),
    (r"A[18]00[- ](SXM4-|PCIE-)?\d+GB( PCIe)?", Peak(312, 19.5)),
    (r"L4", Peak(121, 30.3)),
    (r"L40", Peak(181, 90.5)),
    (r"L40S", Peak(362, 91.6)),
    (r"H100 80GB HBM3", Peak(989.4, 66.9)),
    (r"H100 PCIe", Peak(756.5, 51.2)),
    (r"H[12]00 NVL", Peak(835.5, 60)),
    (r"H200", Peak(989.4, 66.9)),
    (r"GH200 \d+GB", Peak(989.4, 66.9)),
    (r"B200", Peak(2250, None)),
    (r"RTX A6000", Peak(154.8, 38.7)),
    (r"RTX 6000 Ada Generation", Peak(364.2, 91.1)),
    (r"GeForce RTX 3090", Peak(71, 35.6)),
    (r"GeForce RTX 3090 Ti", Peak(80, 40)),
    (r"GeForce RTX 4080", Peak(97.5, 48.7)),
    (r"GeForce RTX 4090", Peak(165.2, 82.6)),
)


def peak_flops(name: str, precision: str) -> float | None:
    """Return the peak operations per second of a GPU. `name` is its name in the driver, and
    `precision` is "fp32", "bf16" or "fp16".

    Return None if the peak is unknown, as for parts of a GPU (MIG) and laptop GPUs.
    """
    bare = name.removeprefix("NVIDIA ")
    found = next((peak for form, peak in _PEAKS if re.fullmatch(form, bare)), None)
    if found is None or (precision == "bf16" and not found.has_bf16):
        return None
    peak = found.fp32 if precision == "fp32" else found.half
    return None if peak is None else peak * TERA
