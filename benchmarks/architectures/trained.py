"""One architecture: save_pretrained, three steps on two ranks at stage 3, export, from_pretrained.

What comes out is held against the weights in the checkpoint, put into the model by their names in
memory, and against a plain loop of PyTorch's.
"""

from __future__ import annotations

import warnings
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers import AutoModelForCausalLM

from benchmarks.architectures import peer
from harness.launching import Attempt, start
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.runs import find_job_checkpoints
from zerotools.runs.training_record import read_record

STEPS, RANKS = 3, 2
LONGEST_REASON = 300


@dataclass
class Row:
    """What became of one architecture; None: it did not come to that.

    `loss` is the largest relative difference of a step's loss from that of the plain loop, `logits`
    the largest of the exported model's from those of the trained weights. `names` and `decay` have
    what differs: the names (and shapes) of tensors in the export from what save_pretrained wrote,
    and the decayed parameters from the Trainer's.
    """

    name: str
    parameters: int = 0
    loss: float | None = None
    logits: float | None = None
    names: list[str] | None = None
    decay: list[str] | None = None
    failure: str = ""

    @property
    def holds(self) -> bool:
        """Whether all is as it should be; computed losses within rounding, the rest exactly."""
        return not self.failure and (
            self.loss is not None
            and self.loss < 1e-5
            and self.logits == 0
            and self.names == []
            and self.decay == []
        )


def examine(name: str, place: Path) -> Row:
    """The row of architecture `name`; it works in the empty directory `place`."""
    row = Row(name)
    examined = _Examined(row, place)
    stages = [examined.save, examined.train, examined.compare_decay, examined.export]
    for stage in [*stages, examined.compare_names, examined.compare_logits]:
        try:
            stage()
        except Exception as error:  # whatever a model of any kind raises; the table has it
            said = " ".join(str(error).split()).replace(f"{place}/", "")
            row.failure = f"{stage.__name__}: {said[:LONGEST_REASON]}"
            break
    return row


class _Examined:
    def __init__(self, row: Row, place: Path) -> None:
        self._row = row
        self._saved, self._exported = place / "saved", place / "exported"
        self._run = place / "run"
        self._step = self._run / "out" / find_job_checkpoints.directory_name(STEPS)
        self._model: Any = None

    def save(self) -> None:
        self._model = peer.save_model(self._row.name, self._saved)
        self._row.parameters = sum(p.numel() for p in self._model.parameters())

    def train(self) -> None:
        attempt = _train(self._saved, self._run)
        found, wanted = attempt.losses(), peer.losses(self._saved, STEPS)
        pairs = zip([found[step] for step in sorted(found)], wanted, strict=True)
        self._row.loss = max(abs(ours - theirs) / theirs for ours, theirs in pairs)

    def compare_decay(self) -> None:
        groups = read_record(self._step).optimizer.groups
        ours = {name for group in groups if group.weight_decay for name in group.params}
        self._row.decay = sorted(ours ^ peer.decayed(self._model))

    def export(self) -> None:
        conversion = prepare_export(self._step, self._exported, Options(dtype="fp32"))
        perform_conversion(conversion, budget=MemoryBudget(1 << 30), overwrite=False)

    def compare_names(self) -> None:
        found, wanted = _shapes(self._exported), _shapes(self._saved)
        self._row.names = sorted(
            name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
        )

    def compare_logits(self) -> None:
        values = _values(self._step)
        with torch.no_grad():
            for name, tensor in self._model.state_dict().items():
                if f"model.{name}" in values:
                    tensor.copy_(values[f"model.{name}"])
        wanted = peer.logits(self._model)
        loaded = AutoModelForCausalLM.from_pretrained(self._exported, dtype=torch.float32)
        self._row.logits = float((peer.logits(loaded) - wanted).abs().max())


def _train(model: Path, run_dir: Path) -> Attempt:
    run_dir.mkdir()
    data = run_dir / "tokens.bin"
    data.write_bytes(array("H", peer.tokens()).tobytes())
    tree = {
        "device": "cpu",
        "ranks": RANKS,
        "zero": {"stage": 3},
        "model": {"path": str(model)},
        "data": {"tokens": [str(data)], "token_type": "uint16", "sequence_length": peer.LENGTH},
        "train": {
            "steps": STEPS,
            "batch_size": peer.SEQUENCES,
            "precision": "fp32",
            "learning_rate": peer.LEARNING_RATE,
            "schedule": "constant",
            "weight_decay": peer.WEIGHT_DECAY,
            "decay_by": "names",
            "betas": list(peer.BETAS),
            "max_grad_norm": peer.MAX_NORM,
        },
    }
    attempt = start(run_dir, tree)
    statuses = attempt.finish()
    assert not any(statuses), _why(attempt)
    return attempt


def _why(attempt: Attempt) -> str:
    return (attempt.log().strip().splitlines() or ["it printed nothing"])[-1]


def _shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in names}
    return found


def _values(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a job's checkpoint by its key, read by torch."""
    reader = dcp.FileSystemReader(checkpoint / "dcp")
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(state, storage_reader=reader, no_dist=True)
    return state
