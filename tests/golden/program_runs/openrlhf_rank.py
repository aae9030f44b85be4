"""One rank of an OpenRLHF run: `python -m tests.golden.program_runs.openrlhf_rank sft|ppo`.

`sft` is OpenRLHF's own program, `openrlhf.cli.train_sft`. `ppo` would need Ray and vLLM: there its
DeepspeedStrategy prepares an actor and a critic, and its own Ray actors' methods save them.

What asks for a CUDA device gets the CPU, and torch's Adam takes the place of DeepSpeed's fused one.
"""

import argparse
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.device_mesh as device_mesh
import transformers  # noqa: F401  # looks for packages before they are pretended

from .absent import pretend
from .inputs import write_examples, write_model

os.environ["HF_DATASETS_CACHE"] = f"{Path.cwd()}/cache-{os.environ['RANK']}"
pretend("flash_attn", "pylatexenc", "vllm", "ray")
sys.modules["flash_attn.ops"] = None  # type: ignore[assignment]  # OpenRLHF does without its kernel

_on_any = device_mesh.init_device_mesh


def _on_cpu(_: str, *arguments: Any, **options: Any) -> Any:
    return _on_any("cpu", *arguments, **options)


device_mesh.init_device_mesh = _on_cpu
torch.cuda.set_device = lambda *_: None
torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]

import ray  # noqa: E402
from openrlhf.utils.deepspeed import deepspeed as writer  # noqa: E402

_configured = writer.get_train_ds_config


def _with_torch_adam(**options: Any) -> dict[str, Any]:
    config = _configured(**options)
    if "optimizer" in config:
        config["optimizer"]["params"]["torch_adam"] = True
    return config


writer.get_train_ds_config = _with_torch_adam
ray.remote = lambda *given, **_: given[0] if given else lambda actor: actor

from openrlhf.models import Actor, get_llm_for_sequence_regression  # noqa: E402
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor  # noqa: E402
from openrlhf.trainer.ray.ppo_critic import CriticModelActor  # noqa: E402
from openrlhf.trainer.sft_trainer import SFTTrainer  # noqa: E402
from openrlhf.utils import get_strategy, get_tokenizer  # noqa: E402
from openrlhf.utils.config import hierarchize  # noqa: E402

from ..deepspeed_runs.launch import leave  # noqa: E402
from ..deepspeed_runs.truth import gather_tensors  # noqa: E402
from .ranks import write_truth  # noqa: E402

STEPS = 4


def write_engine_truth(engine: Any) -> None:
    """What all ranks hold together and save: of stage 3 the masters alone; collective."""
    truth = gather_tensors(engine)
    if engine.zero_optimization_stage() == 3:
        truth = {name: each for name, each in truth.items() if not name.endswith("|param16")}
    if torch.distributed.get_rank() == 0:
        write_truth(truth, Path())


def run_sft(inputs: Path) -> None:
    """OpenRLHF's program for supervised fine-tuning at stage 2, to its end."""
    write_examples(inputs / "examples.jsonl", "input", "output")
    fit = SFTTrainer.fit

    def fit_and_tell(trainer: Any, *arguments: Any) -> None:
        fit(trainer, *arguments)
        write_engine_truth(trainer.model.model)

    SFTTrainer.fit = fit_and_tell
    options = {
        "model.model_name_or_path": inputs,
        "data.dataset": inputs / "examples.jsonl",
        "data.output_key": "output",
        "data.input_template": "{}",
        "data.max_len": 16,
        "ds.attn_implementation": "eager",
        "ds.zero_stage": 2,
        "train.micro_batch_size": 1,
        "train.batch_size": 2,
        "train.max_epochs": 1,
        "adam.lr": 0.01,
        "ckpt.save_steps": 2,
    }
    given = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    sys.argv = ["train_sft", *given, "--ckpt.save_hf"]
    runpy.run_module("openrlhf.cli.train_sft", run_name="__main__")


def ppo_arguments() -> Any:
    """What of the options of `openrlhf.cli.train_ppo_ray` the writers look at."""
    options = {
        "train.micro_batch_size": 1,
        "train.batch_size": 2,
        "train.enable_ema": False,
        "ds.zero_stage": 3,
        "ds.param_dtype": "bf16",
        "ds.tensor_parallel_size": 1,
        "ckpt.path": "ckpt/checkpoints_ppo_ray",
        "ckpt.max_num": 1,
        "ckpt.max_mem": float("inf"),
        "local_rank": -1,
    }
    return hierarchize(argparse.Namespace(**options))


def trained(strategy: Any, model: Any) -> Any:
    """A model and its optimizer, as OpenRLHF has DeepSpeed make them."""
    adam = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
    config = {"optim": "adam", "muon": {}, "adam": adam, "scheduler_steps": STEPS}
    return strategy.prepare((model, config))


def run_ppo(inputs: Path) -> None:
    """Steps of an actor and a critic at stage 3, and OpenRLHF's own saves."""
    arguments = ppo_arguments()
    strategy = get_strategy(arguments)
    strategy.setup_distributed()
    config = strategy.get_ds_train_config()
    eager = {"attn_implementation": "eager", "ds_config": config}
    policy = PolicyModelActor.__new__(PolicyModelActor)
    values = CriticModelActor.__new__(CriticModelActor)
    policy.strategy = values.strategy = strategy
    policy.disable_ds_ckpt = values.disable_ds_ckpt = False
    policy.save_hf_ckpt = True
    actor = Actor(str(inputs), **eager)
    policy.tokenizer = get_tokenizer(str(inputs), actor.model, "left", strategy)
    policy.actor, actor_optimizer, _ = trained(strategy, actor)
    critic = get_llm_for_sequence_regression(str(inputs), "critic", init_value_head=True, **eager)
    values.critic, critic_optimizer, _ = trained(strategy, critic)
    for step in range(1, STEPS + 1):
        tokens = (torch.arange(6).reshape(1, 6) * (2 + strategy.get_rank()) + step) % 19
        mask = torch.ones_like(tokens)
        loss = -policy.actor(tokens, attention_mask=mask, return_logprobs=True).mean()
        strategy.backward(loss, policy.actor, actor_optimizer)
        strategy.optimizer_step(actor_optimizer, policy.actor, None)
        loss = values.critic(tokens, action_mask=mask[:, 1:], attention_mask=mask).square().mean()
        strategy.backward(loss, values.critic, critic_optimizer)
        strategy.optimizer_step(critic_optimizer, values.critic, None)
        if step % 2:
            continue
        said = {"metric_value": 0.5 / step, "metric_key": "eval_default_pass1"}
        tags = [f"global_step{step}"] + (["best_global_step2"] if step == 2 else [])
        for tag in sorted(tags):
            policy.save_checkpoint(tag, {"global_step": step}, **said)
            values.save_checkpoint(tag, **said)
    write_engine_truth(policy.actor.model)


def main() -> None:
    torch.set_num_threads(1)
    inputs = Path(f"inputs-{os.environ['RANK']}")
    inputs.mkdir()
    write_model(inputs)
    {"sft": run_sft, "ppo": run_ppo}[sys.argv[1]](inputs)
    leave()


if __name__ == "__main__":
    main()
