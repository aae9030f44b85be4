"""Layers and experts that the model had and a checkpoint has not.

A checkpoint that ranks save by names keeps one tensor of each name. Where two ranks give one name
to different tensors, torch's writer takes the first, and nothing tells of the other but how many
there should be: so it is with layers of pipeline stages, and with biases of experts of Transformer
Engine's (`mlp.experts.linear_fc1.bias0`), which Megatron does not number over all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from zerotools.core.checkpoint import Key, Problem
from zerotools.formats.megatron.origin import MegatronFacts
from zerotools.io.distcp.file_names import METADATA

_LAYER = re.compile(r"decoder\.layers\.(\d{1,6})\.", re.S)
_EXPERT = re.compile(r"(.*\.experts\.local_experts\.)(\d{1,6})(\..+)", re.S)
_ADVICE = (
    "The others are lost, because ranks saved them under the same names: take a checkpoint of a "
    "run {}"
)


def lost_layers(path: Path, facts: MegatronFacts, keys: Iterable[Key]) -> Iterator[Problem]:
    """Yield a problem if there are fewer layers than the arguments say."""
    wanted = facts.count("decoder_num_layers") or facts.count("num_layers")
    found = {int(match[1]) for key in keys if (match := _LAYER.match(key.name))}
    if wanted is None or not found or len(found) >= wanted:
        return
    advice = _ADVICE.format("without pipeline parallelism, or export the model on its cluster")
    said = f"{path} has {len(found)} of {wanted} layers (num_layers). {advice}"
    yield Problem(said, METADATA, blocks=True)


def lost_experts(path: Path, facts: MegatronFacts, keys: Iterable[Key]) -> Iterator[Problem]:
    """Yield a problem if a layer has a tensor of fewer experts than the arguments say."""
    wanted = facts.count("num_experts")
    found: dict[tuple[str, str, str], set[int]] = {}
    for key in keys:
        if match := _EXPERT.fullmatch(key.name):
            found.setdefault((match[1], match[3], key.role), set()).add(int(match[2]))
    for (before, after, role), numbers in found.items():
        if wanted is not None and len(numbers) < wanted:
            key = Key(f"{before}{{{min(numbers)}..{max(numbers)}}}{after}", role)
            advice = _ADVICE.format("with one expert-parallel rank, or export it on its cluster")
            said = f"{path} has {key} of {len(numbers)} of {wanted} experts (num_experts). {advice}"
            yield Problem(said, METADATA, blocks=True)
            return
