"""State dicts by `torch.save`, zip and legacy, with what makes them awkward."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..deepspeed_runs.models import Zoo, initial
from .gather import gather_live, train


def awkward(model: Zoo) -> "OrderedDict[str, Any]":
    """A state dict with views, a Parameter, an empty and a 0-d tensor, many dtypes."""
    state: OrderedDict[str, Any] = OrderedDict(model.state_dict())
    base = initial((6, 10), 30)
    state["view.transposed"] = base.t()
    state["view.rows"] = base[2:4]
    state["view.column"] = base[:, 3]
    state["view.expanded"] = initial((1, 4), 31).expand(3, 4)
    state["parameter"] = nn.Parameter(initial((2, 3), 32))
    state["empty"] = torch.empty((0, 4))
    state["scalar"] = torch.tensor(2.5, dtype=torch.float64)
    state["half"] = initial((5,), 33).half()
    state["brain"] = initial((5,), 34).bfloat16()
    state["short"] = torch.tensor([-3, 5], dtype=torch.int16)
    state["eight"] = initial((4,), 35).to(torch.float8_e4m3fn)
    return state


def truth_of(model: Zoo, state: "OrderedDict[str, Any]") -> dict[str, Tensor]:
    """Names of live parameters and buffers keep their roles; everything else is a `param`."""
    found = gather_live(model, None)
    known = {key.partition("|")[0] for key in found} | {"head.weight"}
    extra = {f"{n}|param": t.detach().contiguous() for n, t in state.items() if n not in known}
    return dict(sorted((found | {n: t.clone() for n, t in extra.items()}).items()))


def save_state_dicts(checkpoint: Path) -> dict[str, Tensor]:
    """The same values four ways."""
    model = Zoo()
    train(model, torch.optim.AdamW(model.groups(), lr=0.01), 2)
    state = awkward(model)
    torch.save(state, checkpoint / "pytorch_model.bin")
    torch.save(state, checkpoint / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"model": state, "epoch": 3}, checkpoint / "nested.pt")
    torch.save(state, checkpoint / "protocol-4.pt", pickle_protocol=4)
    return truth_of(model, state)


def save_training(checkpoint: Path) -> dict[str, Tensor]:
    """A hand-made training file: model, optimizer by number, epoch; and its legacy twin."""
    model = Zoo()
    optimizer = torch.optim.AdamW(model.groups(), lr=0.01)
    train(model, optimizer, 2)
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}
    torch.save(whole, checkpoint / "checkpoint.pt")
    torch.save(whole, checkpoint / "legacy.pt", _use_new_zipfile_serialization=False)
    return gather_live(model, optimizer)
