"""What the peers themselves say, as JSON: run as one process, which imports them once.

`defaults`: the Trainer's arguments that training follows, by their own names.

`trainer`: the fixture zero3_auto.json after Hugging Face's Trainer has resolved it.
`accelerate`: the stage that its plugin hands to DeepSpeed.
`fields`: every key of DeepSpeed's configuration models, with its default.
`clipping`: to what DeepSpeed clips where its configuration does not say.
`first step`: what explains the losses of DeepSpeed in bf16 at stage 0.
`accepts FILE...`: whether DeepSpeed takes each configuration, on one rank; else what it says.
"""

from __future__ import annotations

import json
import sys
import tempfile
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CONFIGS = Path(__file__).parent / "configs"


def trainer() -> Any:
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = HfTrainerDeepSpeedConfig(json.loads((CONFIGS / "zero3_auto.json").read_text()))
    arguments = SimpleNamespace(
        world_size=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        learning_rate=1e-4,
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        weight_decay=0.0,
        save_on_each_node=False,
        fp16=False,
        fp16_full_eval=False,
        bf16=True,
        bf16_full_eval=False,
        get_warmup_steps=lambda _: 0,
    )
    config.trainer_config_process(arguments)
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=64))
    config.trainer_config_finalize(arguments, model, 1000)
    return config.config


def defaults() -> dict[str, Any]:
    from transformers import TrainingArguments

    names = ("learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay")
    names += ("max_grad_norm", "lr_scheduler_type", "warmup_steps", "optim", "seed", "save_steps")
    names += ("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs")
    fields = TrainingArguments.__dataclass_fields__
    return {name: _plain(fields[name].default) for name in names}


def accelerates() -> dict[str, Any]:
    """What accelerate makes of a stage that is "auto", of a section without one, and of parameter
    offload at stage 2."""
    from accelerate.utils import DeepSpeedPlugin

    auto = DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": "auto"}})
    silent = DeepSpeedPlugin()
    offloaded = DeepSpeedPlugin(zero_stage=2, offload_param_device="cpu")
    for plugin in (auto, silent, offloaded):
        plugin.set_mixed_precision("no")
    return {
        "auto": auto.deepspeed_config["zero_optimization"]["stage"],
        "silent": silent.deepspeed_config["zero_optimization"]["stage"],
        "offloaded": offloaded.deepspeed_config["zero_optimization"]["stage"],
    }


def fields() -> dict[str, Any]:
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    models = {
        "zero_optimization": DeepSpeedZeroConfig,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
        "fp16": DeepSpeedFP16Config,
        "bf16": DeepSpeedBF16Config,
    }
    return {
        f"{section}.{spelling}": _plain(field.default)
        for section, model in models.items()
        for name, field in model.model_fields.items()
        for spelling in {name, field.alias or name}
    }


def clipping() -> Any:
    from deepspeed.runtime.constants import GRADIENT_CLIPPING_DEFAULT

    return GRADIENT_CLIPPING_DEFAULT


def _plain(value: Any) -> Any:
    value = value.value if isinstance(value, Enum) else value
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def accepts(paths: list[str]) -> list[str]:
    from deepspeed.runtime.config import DeepSpeedConfig

    said = []
    for path in paths:
        try:
            DeepSpeedConfig(json.loads(Path(path).read_text()))
            said.append("")
        except Exception as error:  # whatever it is, the test shows it
            said.append(f"{type(error).__name__}: {error}")
    return said


def first_step() -> dict[str, list[float]]:
    """Losses in bf16 of DeepSpeed at stages 0 and 1, and of torch with and without a step of AdamW
    on gradients of 0 before the first."""
    import deepspeed
    import torch

    accelerator = deepspeed.accelerator.get_accelerator()
    builder = accelerator.create_op_builder("ShareMemCommBuilder")
    if builder is not None:  # it would be compiled
        deepspeed.ops.__compatible_ops__[builder.name] = False
    with tempfile.TemporaryDirectory() as folder:
        place = f"file://{folder}/store"
        torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        deepspeed.init_distributed("gloo")
        told = {f"stage {stage}": _by_deepspeed(stage) for stage in (0, 1)}
        told |= {"torch": _by_torch(False), "torch after a step on 0": _by_torch(True)}
        torch.distributed.destroy_process_group()
    return told


_ADAMW: dict[str, Any] = {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}


def _fresh() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def _loss(model: Any, step: int) -> Any:
    import torch

    drawn = torch.Generator().manual_seed(step)
    x, y = torch.randn(4, 8, generator=drawn), torch.randn(4, 2, generator=drawn)
    return ((model(x.bfloat16()) - y.bfloat16()) ** 2).float().mean()


def _by_deepspeed(stage: int) -> list[float]:
    import deepspeed

    model = _fresh()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {**_ADAMW, "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    losses = []
    for step in range(4):
        loss = _loss(engine, step)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
    return losses


def _by_torch(before: bool) -> list[float]:
    import torch

    model = _fresh().bfloat16()
    weights = list(model.parameters())
    masters = [weight.detach().float().requires_grad_() for weight in weights]
    optimizer = torch.optim.AdamW(masters, **_ADAMW)
    if before:
        for master in masters:
            master.grad = torch.zeros_like(master)
        optimizer.step()
    losses = []
    for step in range(4):
        loss = _loss(model, step)
        model.zero_grad()
        loss.backward()
        losses.append(float(loss))
        for master, weight in zip(masters, weights, strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)
    return losses


if __name__ == "__main__":
    told = {
        "trainer": trainer(),
        "defaults": defaults(),
        "accelerate": accelerates(),
        "fields": fields(),
        "clipping": clipping(),
        "accepts": accepts(sys.argv[1:]),
        "first step": first_step(),
    }
    sys.stdout.write("\n" + json.dumps(told))
