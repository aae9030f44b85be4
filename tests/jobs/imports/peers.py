"""What the peers themselves say, as JSON: run as one process, which imports them once.

`defaults`: the Trainer's arguments that training follows, by their own names.

`trainer`: the fixture zero3_auto.json after Hugging Face's Trainer has resolved it.
`fields`: every key of DeepSpeed's configuration models, with its default.
`clipping`: to what DeepSpeed clips where its configuration does not say.
`accepts FILE...`: whether DeepSpeed takes each configuration, on one rank; else what it says.
"""

from __future__ import annotations

import json
import sys
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
    names += ("max_grad_norm", "lr_scheduler_type", "warmup_steps", "optim")
    fields = TrainingArguments.__dataclass_fields__
    return {name: _plain(fields[name].default) for name in names}


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


if __name__ == "__main__":
    told = {
        "trainer": trainer(),
        "defaults": defaults(),
        "fields": fields(),
        "clipping": clipping(),
        "accepts": accepts(sys.argv[1:]),
    }
    sys.stdout.write("\n" + json.dumps(told))
