"""What Megatron-Bridge writes beside a checkpoint stands in for the arguments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.formats.megatron.golden import run_of
from zerotools import formats
from zerotools.core.errors import BadFile

DENSE = "megatron-core-0.16.1/dense-tp2-pp2"
CONFIG = """\
checkpoint:
  save: /runs/x
  num_layers: 99
model:
  # a comment
  num_layers: 2
  hidden_size: 16
  num_attention_heads: 4
  num_query_groups: 2
  gated_linear_unit: true
  share_embeddings_and_output_weights: false
  layernorm_epsilon: 1.0e-05
  position_embedding_type: "rope"
  nested:
    num_layers: 7
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  bf16: true
  fp16: false
optimizer:
  lr: 0.1
"""


@pytest.mark.torch
def test_arguments_and_step_come_from_its_files(tmp_path: Path) -> None:
    import torch

    run = Path(shutil.copytree(run_of(DENSE), tmp_path / "run"))
    (run / "latest_checkpointed_iteration.txt").unlink()
    torch.save({"step": torch.tensor(10, dtype=torch.int32)}, run / "latest_train_state.pt")
    directory = run / "iter_0000010"
    torch.save({"checkpoint_version": 3.0}, directory / "common.pt")
    shutil.copy(run / "latest_train_state.pt", directory / "train_state.pt")
    (directory / "run_config.yaml").write_text(CONFIG)
    checkpoint = formats.read(run)
    args = formats.training_of(checkpoint).client["args"]
    assert (args["num_layers"], args["layernorm_epsilon"]) == (2, 1e-5)
    assert (args["swiglu"], args["untie_embeddings_and_output_weights"]) == (True, True)
    assert (args["group_query_attention"], args["position_embedding_type"]) == (True, "rope")
    origin = checkpoint.origin
    assert (origin.step, str(origin.precision)) == (10, "bfloat16")
    assert "saved with TP 2, PP 2" in origin.notes
    torch.save({"step": torch.tensor(20)}, run / "latest_train_state.pt")
    with pytest.raises(BadFile, match=r"latest_train_state.pt names 'iter_0000020'"):
        formats.read(run)
