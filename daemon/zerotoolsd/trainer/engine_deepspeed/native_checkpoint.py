"""Writes and loads DeepSpeed's part of a checkpoint: its own layout, inside a staging directory.

    global_stepN/*.pt   DeepSpeed's files, with its tag and names
    latest              the tag, written after all ranks (DeepSpeed does not wait for them)
    zero_to_fp32.py     DeepSpeed's script

With offload to NVMe, only the weights are written, as safetensors. A checkpoint in DeepSpeed's
layout could not be resumed, because DeepSpeed's load would silently skip the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from zerotools.core.errors import ZerotoolsError
from zerotools.runs.training_record import LossScaleRecord, OptimizerGroup, OptimizerRecord
from zerotoolsd.trainer.checkpoints.save_checkpoint import SaveFailed
from zerotoolsd.trainer.engine_deepspeed.build_model import whole_parameters
from zerotoolsd.trainer.model.hub_tensors import SINGLE
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.rank.rank_errors import BadCheckpoint

LATEST = "latest"


class _Careful:
    """DeepSpeed's checkpoint writer, changed so that it stores an error instead of raising it.

    DeepSpeed writes between two barriers. If a rank raised an error there, the other ranks would
    wait forever.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self.problem: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def save(self, state_dict: Any, path: str) -> None:
        try:
            self._writer.save(state_dict, path)
        except (OSError, RuntimeError) as error:  # torch's own zip writer raises RuntimeError
            self.problem = self.problem or f"{path}: {str(error).splitlines()[0]}"


class DeepSpeedCheckpoints:
    """Writes and loads checkpoints of DeepSpeed's `engine`."""

    def __init__(self, deepspeed: Any, engine: Any, group: WorldGroup) -> None:
        self._deepspeed = deepspeed
        self._engine = engine
        self._group = group
        self._writer = engine.checkpoint_engine = _Careful(engine.checkpoint_engine)
        self._copy_scripts: Callable[[str], None] = engine._copy_recovery_script
        engine._copy_recovery_script = lambda directory: None  # called below, where it may fail

    def write(self, staging: Path) -> None:
        """Write this rank's part of a checkpoint into `staging`. Raises OSError, SaveFailed."""
        engine = self._engine
        tag = f"global_step{engine.global_steps}"
        self._writer.problem = None
        engine.save_checkpoint(str(staging), tag=tag, save_latest=False)
        if self._writer.problem is not None:
            raise SaveFailed(self._writer.problem)
        if self._group.rank.leads:
            if engine.zero_optimization():
                self._copy_scripts(str(staging))
            (staging / LATEST).write_text(tag, "utf-8")

    def write_weights(self, staging: Path) -> None:
        """Gather the weights from all ranks; rank 0 writes them into `staging`.

        Raises OSError, SaveFailed.
        """
        kept: dict[str, torch.Tensor] = {}
        for name, tensor in whole_parameters(self._deepspeed, self._engine.module):
            if self._group.rank.leads:
                kept[name] = tensor.to("cpu", copy=True).contiguous()
        if not self._group.rank.leads:
            return
        try:
            save_file(kept, staging / SINGLE, metadata={"format": "pt"})
        except Exception as error:  # safetensors has its own error, for a full disk too
            raise SaveFailed(f"{staging / SINGLE}: {error}") from None

    def load(self, directory: Path, step: int, tag: str | None = None) -> None:
        """Load the checkpoint of step `step` in `directory`.

        `tag` is the name of DeepSpeed's subdirectory. If `tag` is None, the name is read from the
        file `latest`.

        Raises:
            BadCheckpoint: DeepSpeed cannot load the checkpoint.
        """
        try:
            found, _ = self._engine.load_checkpoint(str(directory), tag=tag)
        except ZerotoolsError:
            raise
        except Exception as error:  # any error of DeepSpeed about the files
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise BadCheckpoint(f"{directory}: DeepSpeed cannot load it: {first}") from error
        if found is None:
            raise BadCheckpoint(f"{directory} has no file {LATEST} with the name of a checkpoint")
        if self._engine.global_steps != step:
            raise BadCheckpoint(
                f"{directory}: DeepSpeed loaded step {self._engine.global_steps}, but the "
                f"record of the checkpoint has step {step}"
            )


def groups_of(
    name: str, groups: Sequence[Mapping[str, Any]], names: Sequence[tuple[str, ...]]
) -> OptimizerRecord:
    """Return the record of the optimizer `name`, with the settings and names of its parameter
    groups.

    DeepSpeed may split groups for experts. Then the record has no parameter names.
    """
    known = names if len(names) == len(groups) else [()] * len(groups)
    return OptimizerRecord(
        name, tuple(_group(group, params) for group, params in zip(groups, known, strict=True))
    )


def _group(group: Mapping[str, Any], params: tuple[str, ...]) -> OptimizerGroup:
    betas = group.get("betas")
    return OptimizerGroup(
        lr=float(group["lr"]),
        weight_decay=float(group.get("weight_decay", 0.0)),
        betas=None if betas is None else (float(betas[0]), float(betas[1])),
        eps=group.get("eps"),
        momentum=group.get("momentum"),
        params=params,
    )


def loss_scale_of(engine: Any) -> LossScaleRecord:
    """Return the loss scale of DeepSpeed's `engine`, which trains in fp16 at stage 1 or above."""
    scaler = engine.optimizer.loss_scaler
    scale = float(engine.optimizer.cur_scale)
    if not scaler.dynamic:
        return LossScaleRecord(cur_scale=scale, dynamic=False)
    return LossScaleRecord(
        cur_scale=scale,
        dynamic=True,
        cur_iter=int(scaler.cur_iter),
        last_overflow_iter=int(scaler.last_overflow_iter),
        cur_hysteresis=int(getattr(scaler, "cur_hysteresis", 1)),
        scale_window=int(scaler.scale_window),
        min_scale=float(scaler.min_scale),
        delayed_shift=int(getattr(scaler, "delayed_shift", 1)),
        consecutive_hysteresis=bool(getattr(scaler, "consecutive_hysteresis", False)),
    )
