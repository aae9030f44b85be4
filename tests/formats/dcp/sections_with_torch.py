"""What programs save with torch's own DCP: models, optimizers and the rest in sections of any name.

    python -m tests.formats.dcp.sections_with_torch OUT LAYOUT...

makes some again; those of tests/golden/torch-2.13.0-sections were made so.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.stateful import Stateful


class Net(nn.Module):
    """Submodules that are called as sections of checkpoints are, and buffers."""

    def __init__(self, hidden: int = 3) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.BatchNorm1d(hidden))
        self.optim = nn.Linear(2, 1)
        self.scheduler = nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).sum() + self.scheduler(self.optim(x)).sum()


class App(Stateful):
    """As in torch's tutorial on distributed checkpoints."""

    def __init__(self, model: Mapping[str, Any], optim: Mapping[str, Any]) -> None:
        self._state = {"model": model, "optim": optim}

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise NotImplementedError


def trained(seed: int = 0, hidden: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    """After one step of AdamW."""
    torch.manual_seed(seed)
    model = Net(hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    model(torch.randn(5, 2)).backward()
    optimizer.step()
    return model, optimizer


def layouts() -> dict[str, dict[str, Any]]:
    """State dicts by layout. The model that is meant, where one is, is that of seed 0."""
    model, optimizer = trained()
    weights, state = get_state_dict(model, optimizer)
    _, flat = get_state_dict(
        model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True)
    )
    loop, rng = {"step": torch.tensor(7), "loss": torch.tensor(0.5)}, torch.get_rng_state()
    other, other_optimizer = trained(1, hidden=4)
    other_weights, other_state = get_state_dict(other, other_optimizer)
    ema = {name: value.clone() + 1 for name, value in weights.items()}
    numbered = optimizer.state_dict()
    parts = {"encoder": nn.Linear(2, 3), "decoder": nn.Linear(3, 2)}
    joined = nn.ModuleDict(parts)
    joined_optimizer = torch.optim.SGD(joined.parameters(), momentum=0.5)
    joined["decoder"](joined["encoder"](torch.ones(1, 2))).sum().backward()
    joined_optimizer.step()
    _, joined_state = get_state_dict(joined, joined_optimizer)
    return {
        "app": {"app": App(weights, state)},
        "numbered": {
            "model_state_dict": weights,
            "optimizer_state_dict": numbered,
            "epoch": 3,
            "loss": torch.tensor(0.25),
        },
        "no buffers, numbered": _linear_numbered(),
        "lightning": {"state_dict": weights, "optimizer_0": state, "epoch": 1},
        "lightning list": {"state_dict": weights, "optimizer_states": [numbered]},
        "state_dict and optimizer": {"state_dict": weights, "optimizer": state},
        "train_state": {"train_state": {"model": weights, "optimizer": state, **loop}},
        "three deep": {"run": {"trainer": {"model": weights, "optim": flat}}, "rng": rng},
        "beside state": {"model": weights, "optimizer": state, **loop, "rng": rng},
        "flat": {**weights, **flat},
        "flat beside state": {**weights, **flat, **loop, "rng": rng},
        "flat in one section": {"app": {**weights, **flat}},
        "flat optimizer": {"model": weights, "optim": flat},
        "written into keys": {
            **{f"model.{name}": value for name, value in weights.items()},
            **{f"optimizer.{name}": value for name, value in flat.items()},
        },
        "bare": dict(weights),
        "scheduler with tensors": {
            "model": weights,
            "lr_scheduler": {"base_lrs": torch.tensor([0.1, 0.2])},
        },
        "called param": {
            "param": weights,
            "optimizer": {name: {"param": t + 1, "m": t} for name, t in weights.items()},
        },
        "ema": {"model": weights, "ema": ema, "optimizer": state},
        "ema state dict": {"state_dict": weights, "model_ema": ema, "optimizer": numbered},
        "frozen teacher": {"model": weights, "teacher": other_weights, "optimizer": state},
        "empty sections": {"model": weights, "optimizer": {}, "extra": {}, "list": []},
        "parts": {**{k: m.state_dict() for k, m in parts.items()}, "optimizer": joined_state},
        "gan": {
            "generator": weights,
            "discriminator": other_weights,
            "optimizer_g": state,
            "optimizer_d": other_state,
        },
        "gan without optimizers": {"generator": weights, "discriminator": other_weights},
        "two models of a kind": {
            "student": weights,
            "teacher": ema,
            "optimizer": state,
        },
        "two with optimizers": {
            "model": weights,
            "critic": other_weights,
            "optimizer": state,
            "critic_optimizer": other_state,
        },
        "backbone and head": {
            "backbone": other_weights,
            "head": weights,
            "optimizer": state,
        },
        "odd keys": {"model": {"a/b.c d": torch.ones(2), "": torch.ones(1), "é.😀": torch.ones(3)}},
        "keys that are not text": {1: {2: torch.ones(2), (3, 4): torch.ones(1)}, "note": "x"},
        "run alone": {"rng": rng, "step": torch.tensor(3), "dataloader": {"at": torch.ones(2)}},
    }


def _linear_numbered() -> dict[str, Any]:
    model = nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def save(state: dict[str, Any], path: Path) -> None:
    """One process, no process group."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=path, no_dist=True)


def save_all(root: Path, names: Iterable[str]) -> None:
    """Each layout in a directory of its name, and beside them SHA-256 of each weight of the model
    that is meant: it was trained here, and other processors train other bits."""
    states = layouts()
    for name in names:
        save(states[name], root / name)
    weights = states["bare"]
    digests = {n: hashlib.sha256(w.numpy().tobytes()).hexdigest() for n, w in weights.items()}
    (root / "expected.json").write_text(json.dumps(digests, indent=1) + "\n")


if __name__ == "__main__":
    save_all(Path(sys.argv[1]), sys.argv[2:])
