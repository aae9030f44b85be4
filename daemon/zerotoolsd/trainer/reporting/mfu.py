"""Computes the model FLOPs utilization (MFU): useful operations per second, divided by the peak of
the GPUs.

Aakanksha Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", appendix B: a token
costs 6N + 12·L·H·Q·T operations, forward and backward, for N parameters, L layers of H heads of
size Q (H·Q is the hidden size) and sequences of T tokens. Operations that are repeated for
activation checkpointing do not count. The masked half of the attention is not subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from zerotools.sensors.peak_flops import peak_flops
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
