"""Runs under Hugging Face's Trainer and under accelerate, which add files of their own."""

from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from accelerate.utils import DeepSpeedPlugin
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from .case import Case, deepspeed_config
from .models import MODELS, Model, initial

TOKENS = 37


class Sentences(Dataset[dict[str, Tensor]]):
    """Eight rows of eight token ids."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = (torch.arange(8) * (index + 3) + index) % TOKENS
        return {"input_ids": row, "labels": row.clone()}


def tiny_llama(tied: bool, key_value_heads: int = 1) -> LlamaForCausalLM:
    """About 1,400 parameters; weights are a formula, norms stay at one."""
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=8,
            intermediate_size=12,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=key_value_heads,
            vocab_size=TOKENS,
            max_position_embeddings=32,
            tie_word_embeddings=tied,
        )
    )
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            if parameter.dim() > 1:
                parameter.copy_(initial(parameter.shape, seed) / 4)
    return model


def trainer_config(case: Case) -> dict[str, Any]:
    """A DeepSpeed configuration with the "auto" values that only the Trainer understands."""
    config = deepspeed_config(case) | {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
    }
    if "optimizer" in config:
        auto = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
        config["optimizer"] = {"type": "AdamW", "params": {**auto, "torch_adam": True}}
    return config


def run_trainer(case: Case) -> tuple[Any, list[list[str]]]:
    """Trains and saves `checkpoint/checkpoint-<steps>`; returns engine and names per group."""
    arguments = TrainingArguments(
        output_dir="checkpoint",
        use_cpu=True,
        bf16=case.precision == "bf16",
        max_steps=case.steps,
        save_steps=case.steps,
        per_device_train_batch_size=1,
        learning_rate=0.01,
        weight_decay=0.1,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1000,
        deepspeed=trainer_config(case),
    )
    model = tiny_llama(tied=case.stage == 3)
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences())
    names = [name for name, _ in model.named_parameters()]
    groups = [names]
    if case.optimizer == "client":
        decayed = set(trainer.get_decay_parameter_names(model))
        groups = [[n for n in names if n in decayed], [n for n in names if n not in decayed]]
    trainer.train()
    engine = trainer.model_wrapped
    write_logits(engine)
    return engine, groups


def write_logits(engine: Any) -> None:
    """What the trained model answers to three rows of tokens; collective."""
    ids = torch.stack([Sentences()[row]["input_ids"] for row in range(3)])
    engine.eval()
    with torch.no_grad():
        logits = engine(input_ids=ids).logits
    if dist.get_rank() == 0:
        save_file({"input_ids": ids, "logits": logits.contiguous()}, "logits.safetensors")


def run_accelerate(case: Case) -> tuple[Any, list[list[str]]]:
    """Trains and saves with `save_state("checkpoint")`; returns engine and names per group."""
    PartialState(cpu=True)  # otherwise every rank takes itself for the only one
    plugin = DeepSpeedPlugin(hf_ds_config=deepspeed_config(case))
    accelerator = Accelerator(deepspeed_plugin=plugin)
    model: Model = MODELS[case.model]()
    names = model.group_names()
    optimizer = torch.optim.AdamW(model.groups(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    engine, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    for step in range(1, case.steps + 1):
        accelerator.backward(engine(step, dist.get_rank()))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    accelerator.save_state("checkpoint")
    return engine, names
