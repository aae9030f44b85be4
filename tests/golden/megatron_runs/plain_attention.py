"""Attention as its formula is written, for latent attention: Megatron's own CPU kind does not know
the sizes of its heads, and Transformer Engine needs a GPU."""

import torch


class PlainAttention(torch.nn.Module):
    """Causal softmax(q k / scale) v; inputs are (tokens, batch, heads, size)."""

    def __init__(self, config, softmax_scale=None, **kwargs):
        super().__init__()
        self.scale = softmax_scale

    def forward(self, query, key, value, attention_mask, **kwargs):
        scale = self.scale or query.shape[-1] ** -0.5
        scores = torch.einsum("qbhd,kbhd->bhqk", query, key) * scale
        length = scores.shape[-1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        made = torch.einsum("bhqk,kbhd->qbhd", weights, value)
        return made.reshape(*made.shape[:2], -1)
