"""A tiny module under Lightning's Trainer: `lightning_program.py WORD...`

hold=N     after step N, rank 0 waits for the stop; not in a run that resumes
ranks=N    of DDP
async      checkpoints are written in a thread, slowly
old        the name `pytorch_lightning`
KEY=VALUE  of the Trainer, as JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from zerotools import worker
from zerotools.integrations import agree_between_ranks
from zerotools.integrations.lightning import ZerotoolsCallback

words = sys.argv[1:]


class Line(pl.LightningModule):  # type: ignore[misc]
    """Learns a line."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[float] = []

    def training_step(self, batch: Any, _: int) -> Any:
        loss = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("train_error", loss.sqrt())
        self.seen.append(float(loss))
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        loss = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log_dict({"val_loss": loss, "val_accuracy": 0.5}, sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Hold(pl.Callback):  # type: ignore[misc]
    """Waits after a step until the job is asked to stop."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == int(settings["hold"]):
            Path("holding").touch()
            while not (Path(os.environ["ZEROTOOLS_RUN_DIR"]) / "stop").exists():
                time.sleep(0.005)


class SlowIO(pl.plugins.io.TorchCheckpointIO):  # type: ignore[misc]
    """Takes a while for each file."""

    def save_checkpoint(self, *arguments: Any, **named: Any) -> None:
        time.sleep(0.3)
        super().save_checkpoint(*arguments, **named)


settings = dict(word.split("=", 1) for word in words if "=" in word)
options = {n: json.loads(value) for n, value in settings.items() if n not in ("hold", "ranks")}
count = int(settings.get("ranks", "1"))
rows = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
callbacks: list[Any] = [
    ZerotoolsCallback(),
    pl.callbacks.ModelCheckpoint("checkpoints", "step={step}", auto_insert_metric_name=False,
                                 every_n_train_steps=2, save_top_k=-1),
]  # fmt: skip
if "hold" in settings and worker.resume_from() is None and os.environ.get("RANK", "0") == "0":
    callbacks.insert(0, Hold())
if count > 1:
    agree_between_ranks.ASK_SECONDS = 0.0
plugins = [pl.plugins.io.AsyncCheckpointIO(SlowIO())] if "async" in words else None
trainer = pl.Trainer(
    accelerator="cpu",
    devices=count,
    strategy="ddp" if count > 1 else "auto",
    callbacks=callbacks,
    plugins=plugins,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    use_distributed_sampler=False,
    **{"log_every_n_steps": 1, "max_epochs": 2, "min_epochs": 2, **options},
)
loader = torch.utils.data.DataLoader(rows, batch_size=4)
line = Line()
trainer.fit(line, loader, loader, ckpt_path=worker.resume_from())
print("batches:", json.dumps(line.seen))
print("should_stop:", worker.should_stop())
