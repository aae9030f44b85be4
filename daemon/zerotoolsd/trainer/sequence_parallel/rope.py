"""Rotary angles that depend on the length of a sequence: each rank uses those of the whole one.

"dynamic" and "longrope" compute the angles from the largest position id, which on a rank is that of
its stretch. Here they get one additional position, the last of all, and the result for it is
removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from zerotoolsd.trainer.sequence_parallel.sequence_attention import read_now

_BY_LENGTH = ("dynamic", "longrope")
_IDS = "position_ids"


def heed_whole_length(model: nn.Module) -> None:
    """Let such rotary modules of `model` use the last position of the whole sequence."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        named = list(kinds.values()) if isinstance(kinds, Mapping) else [kinds]
        if any(kind in _BY_LENGTH for kind in named):
            module.register_forward_pre_hook(_with_last, with_kwargs=True)
            module.register_forward_hook(_without_last)


def _with_last(module: nn.Module, args: Any, arguments: Any) -> Any:
    whole = read_now()
    if whole is None:
        return None
    ids = arguments[_IDS] if _IDS in arguments else args[1]
    last = torch.as_tensor(whole.last, dtype=ids.dtype, device=ids.device).expand(len(ids), 1)
    more = torch.cat([ids, last], dim=1)
    if _IDS in arguments:
        return args, {**arguments, _IDS: more}
    return (args[0], more, *args[2:]), arguments


def _without_last(module: nn.Module, args: Any, output: Any) -> Any:
    if read_now() is None:
        return None
    if isinstance(output, torch.Tensor):  # as complex numbers
        return output[:, :-1]
    return tuple(each[:, :-1] for each in output)
