"""One rank of a Lightning run: `python -m tests.golden.program_runs.lightning_rank STRATEGY`.

Lightning's Trainer trains and saves by its own ModelCheckpoint. `fsdp2` is its
ModelParallelStrategy, whose checkpoints are directories of torch DCP.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from .ranks import tiny_llama, write_truth


class Llama(LightningModule):
    def __init__(self, strategy: str) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = tiny_llama()

    def configure_model(self) -> None:
        if self.hparams["strategy"] == "fsdp2":
            fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Tensor, _: int) -> Any:
        return self.model(input_ids=batch, labels=batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main() -> None:
    strategy = sys.argv[1]
    torch.set_num_threads(1)
    tokens = torch.arange(48).reshape(8, 6) % 19
    trainer = Trainer(
        accelerator="cpu",
        devices=2 if strategy == "fsdp2" else 1,
        strategy=ModelParallelStrategy(2, 1) if strategy == "fsdp2" else "auto",
        max_steps=4,
        logger=CSVLogger("run"),
        callbacks=[ModelCheckpoint(every_n_train_steps=2, save_top_k=-1, save_last=True)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Llama(strategy)
    trainer.fit(model, DataLoader(tokens, batch_size=1))
    weights = {
        name: getattr(p, "full_tensor", lambda p=p: p)() for name, p in model.named_parameters()
    }
    if trainer.global_rank == 0:
        write_truth({f"{name}|param": tensor.detach() for name, tensor in weights.items()}, Path())
    trainer.strategy.barrier()


if __name__ == "__main__":
    main()
