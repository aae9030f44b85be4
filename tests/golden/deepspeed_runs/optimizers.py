"""The optimizers of the cases: sections for a DeepSpeed config, and one that clients bring."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "adamw": {
        "type": "AdamW",
        "params": {
            "lr": 0.01,
            "betas": [0.9, 0.95],
            "eps": 1e-8,
            "weight_decay": 0.01,
            "torch_adam": True,
        },
    },
    "adam_l2": {
        "type": "Adam",
        "params": {"lr": 0.01, "weight_decay": 0.05, "adam_w_mode": False, "torch_adam": True},
    },
    "amsgrad": {
        "type": "AdamW",
        "params": {"lr": 0.01, "amsgrad": True, "torch_adam": True},
    },
    "cpu_adam": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.01}},
    "cpu_lion": {"type": "Lion", "params": {"lr": 0.002, "weight_decay": 0.01}},
    "sgd": {"type": "SGD", "params": {"lr": 0.1}},
    "sgd_momentum": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
    "rmsprop": {"type": "RMSprop", "params": {"lr": 0.01, "momentum": 0.5, "centered": True}},
    "adagrad": {"type": "Adagrad", "params": {"lr": 0.05}},
    "muon": {
        "type": "Muon",
        "params": {"lr": 0.02, "momentum": 0.9, "adam_lr": 0.01, "torch_adam": True},
    },
}


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023, algorithm 2): one moment, no step count."""

    def __init__(
        self, params: Iterable[Any], lr: float = 0.002, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": weight_decay})

    def step(self, closure: None = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, group)

    def _update(self, parameter: Any, group: Mapping[str, Any]) -> None:
        first, second = group["betas"]
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        moment = state["exp_avg"]
        update = moment.mul(first).add_(parameter.grad, alpha=1 - first).sign_()
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"])
        moment.mul_(second).add_(parameter.grad, alpha=1 - second)


CLIENT_OPTIMIZERS = {"lion": Lion}
