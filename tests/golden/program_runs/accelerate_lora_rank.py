"""One rank of a LoRA run.

    python -m tests.golden.program_runs.accelerate_lora_rank STATE_DICT_TYPE

accelerate's own `prepare` and `save_fsdp_model`, with FSDP2, on a model of PEFT. accelerate shards
on GPUs alone: it is made to believe that the processes are of several.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from accelerate.utils import DistributedType, save_fsdp_model
from peft import LoraConfig, get_peft_model

from .ranks import tiny_llama, train, write_truth

LORA = LoraConfig(
    r=2,
    lora_alpha=8,
    target_modules=["q_proj", "down_proj"],
    modules_to_save=["lm_head"],
    init_lora_weights=False,
)


def main() -> None:
    torch.set_num_threads(1)
    PartialState(cpu=True)._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        state_dict_type=sys.argv[1],
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    )
    accelerator = Accelerator(fsdp_plugin=plugin)
    model = get_peft_model(tiny_llama(), LORA)
    weights = [each for each in model.parameters() if each.requires_grad]
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(weights, lr=0.01))
    train(model, optimizer, 2, accelerator.process_index)
    run = Path("checkpoint")
    run.mkdir(exist_ok=True)
    save_fsdp_model(plugin, accelerator, model, run)
    whole = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        merged = get_peft_model(tiny_llama(), LORA)
        merged.load_state_dict(whole)
        merged.peft_config["default"].save_pretrained(run)
        tiny_llama().config.save_pretrained(run)
        write_truth(merged.merge_and_unload().state_dict(), Path())
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
