"""A small map for tests, whose text can be changed, and the config of its model."""

from __future__ import annotations

from typing import Any

from zerotools.maps.map_file import FamilyMap, read_map

TEXT = """
about = "a toy"
model_types = ["toy"]

[short]
L = "layer.{i}"

[sizes]
hidden = "hidden_size"
heads = "num_heads or 2"

[indices]
i = "num_layers"
e = "num_experts"

[hf]
"embed" = "vocab_size, hidden"
"$L.q" = "hidden, hidden"
"$L.kv" = "2 * hidden, hidden"
"$L.bias" = "hidden if biased"
"$L.expert.{e}.w" = "3, hidden"
"head" = "vocab_size, hidden"

[optional]
"head" = "tied"

[layouts.other]
about = "another program"
ignored = ["*.inv_freq"]
stacked = "i"
ties = { "top.out" = "top.in" }

[layouts.other.tensors]
"top.in" = "pad(embed; vocab_multiple)"
"block.{i}.q" = "pairs($L.q; heads)"
"block.{i}.kv" = "interleave(part($L.kv; 0, 0, hidden), part($L.kv; 0, hidden, 2 * hidden); heads)"
"block.{i}.bias" = "$L.bias"
"block.{i}.experts" = "transpose(stack($L.expert.{e}.w; e); 1, 2)"
"top.out" = "pad(head; vocab_multiple)"

[layouts.other.also]
"block.{i}.query" = "block.{i}.q"

[layouts.twin]
same_as = "other"
"""
CONFIG: dict[str, Any] = {
    "model_type": "toy",
    "hidden_size": 4,
    "vocab_size": 10,
    "num_layers": 2,
    "num_experts": 3,
}


def changed(*changes: tuple[str, str]) -> FamilyMap:
    """The map with words of its text replaced."""
    text = TEXT
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return read_map(text.encode(), "toy.toml")
