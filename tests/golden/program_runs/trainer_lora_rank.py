"""One rank of a LoRA run of transformers' Trainer with FSDP:
`python -m tests.golden.program_runs.trainer_lora_rank STATE_DICT_TYPE VERSION`.

The Trainer shards on GPUs alone: it is made to believe that the processes are of several.
"""

import sys
from pathlib import Path

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from .ranks import tiny_llama, write_truth

STEPS = 2
LORA = LoraConfig(
    r=2,
    lora_alpha=8,
    target_modules=["q_proj", "down_proj"],
    modules_to_save=["lm_head"],
    init_lora_weights=False,
)


class Examples(Dataset[dict[str, torch.Tensor]]):
    """A few rows of tokens."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(6) * (2 + number) % 19
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    torch.set_num_threads(1)
    kind, version = sys.argv[1], int(sys.argv[2])
    arguments = TrainingArguments(
        output_dir="run",
        use_cpu=True,
        per_device_train_batch_size=1,
        max_steps=STEPS,
        save_steps=STEPS,
        learning_rate=0.01,
        report_to=[],
        disable_tqdm=True,
        optim="adamw_torch",
        fsdp=True,
        fsdp_config={
            "version": version,
            "state_dict_type": kind,
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
            "use_orig_params": True,
            "sync_module_states": False,
            "cpu_ram_efficient_loading": False,
        },
    )
    PartialState._shared_state |= {
        "distributed_type": DistributedType.MULTI_GPU,
        "device": torch.device("cpu"),  # FSDP1 takes no number with it
    }
    torch.manual_seed(1)
    model = get_peft_model(tiny_llama(), LORA)
    trainer = Trainer(model=model, args=arguments, train_dataset=Examples())
    trainer.train()
    if version == 1:  # accelerate's own way faults on CPUs: it moves weights there that are there
        with FullyShardedDataParallel.summon_full_params(trainer.model, writeback=False):
            whole = {name: each.clone() for name, each in trainer.model.named_parameters()}
    else:
        whole = trainer.accelerator.get_state_dict(trainer.model)
    if trainer.accelerator.is_main_process:
        merged = get_peft_model(tiny_llama(), LORA)
        merged.load_state_dict(whole)
        write_truth(merged.merge_and_unload().state_dict(), Path())
        for named in Path("run").rglob("training_args.bin"):  # it names this machine
            named.unlink()
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
