"""What is trained in the tables: one job for each way in which state could be lost at a stop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.judging_training.setting import VOCABULARY, Setting
from harness.launching import TINY_GPT2, TINY_LLAMA, job
from zerotools.jobs.jobfile_tables.spec import FP16_ON_CPU

BATCH, SAVED_EVERY = 12, 7
MOE = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}
ROUTED = {**MOE, "model_type": "qwen3_moe", "num_experts": 4, "head_dim": 8}
BIASED = {
    **MOE,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
HEADS = {**TINY_LLAMA, "hidden_size": 48, "num_attention_heads": 12}
PARTS = {**HEADS, "num_key_value_heads": 12, "intermediate_size": 60}
PIECES = {"micro_batch_size": 2}
Changes = dict[str, Any]
BY_DAEMON = (
    *("stage 0", "stage 1", "stage 2", "stage 3", "stage 1, fp16 that overflows"),
    *("stage 3, sequences on 2 ranks", "stage 3, layers on 2 ranks"),
)
MOVED = (
    "stage 3",
    "stage 2, bf16",
    "stage 1, fp16 that overflows",
    "stage 3, accumulated",
    "stage 1, accumulated in shards, bf16",
    "stage 2, loss in parts",
    "stage 3, packed examples, loss in parts",
    "stage 1, mixture, evaluated",
    "stage 3, adapters beside 16 bits",
    "stage 3, experts with a loss of their router",
    "stage 2, experts with a moved bias, accumulated",
    "stage 2, Adafactor",
    "stage 1, Muon",
    "stage 3, preferences, accumulated",
    "stage 3, sequences on 2 ranks",
    "stage 3, layers on 2 ranks",
    "stage 2, preferences, sequences on 2 ranks",
    "stage 3, layers and sequences on 2 x 2 ranks",
    "stage 3, adapters, layers on 2 ranks",
)
"""Those that go on at other stages and numbers of ranks. Dropout is drawn by each rank."""


def ways(texts: list[str], setting: Setting, spill: Path) -> dict[str, Changes]:
    """Changes to `harness.launching.job`, by name. `texts` are files of text, `setting` has a model
    directory with a tokenizer and examples, and `spill` is a directory for what goes to a disk."""
    packed = {"text": [], "examples": [str(setting.examples)], "sequence_length": 96}
    half = {"precision": "bf16"}
    adapters = {"rank": 4, "target_modules": ["q_proj", "v_proj"], "dropout": 0.1}
    preferences = {
        "data": {
            "text": [],
            "preferences": [str(_pairs(setting.examples))],
            "tokenizer": str(setting.model),
        },
        "dpo": {"beta": 0.3},
        "eval": {"fraction": 0.1, "every": 5},
    }
    return {
        **{f"stage {stage}": _way(stage) for stage in range(4)},
        "stage 3, 1 rank": _way(3, ranks=1),
        "stage 0, bf16": _way(0, half),
        "stage 2, bf16": _way(2, half),
        "stage 1, fp16 that overflows": _way(
            1,
            {"precision": "fp16"},
            env={FP16_ON_CPU: "1"},
            fp16={"initial_scale_power": 36, "loss_scale_window": 6, "hysteresis": 1},
        ),
        "stage 3, accumulated": _way(3, PIECES),
        "stage 3, accumulated locally, bf16": _way(3, {**PIECES, **half, "accumulate": "local"}),
        "stage 1, accumulated in shards, bf16": _way(
            1, {**PIECES, **half, "accumulate": "sharded"}
        ),
        "stage 2, optimizer on the host, dropout": _way(
            2,
            {**half, "activation_checkpointing": True},
            model={"config": TINY_GPT2},
            offload={"optimizer": "cpu"},
        ),
        "stage 3, optimizer on the disk, accumulated": _way(
            3, {**PIECES, **half}, offload={"optimizer": "disk", "path": str(spill)}
        ),
        "stage 3, parameters on the host": _way(3, offload={"params": "cpu"}),
        "stage 2, loss in parts": _way(2, {"chunked_loss": "on"}),
        "stage 3, packed examples, loss in parts": _way(
            3,
            {"chunked_loss": "on"},
            model={"path": str(setting.model)},
            data={**packed, "packing": True},
        ),
        "stage 1, mixture, evaluated": _way(
            1,
            data={"text": texts, "mixture": [0.7, 0.3], "sequence_length": 32},
            eval={"fraction": 0.05, "every": 5},
        ),
        "stage 3, adapters beside 16 bits": _way(3, half, lora={**adapters, "dropout": 0.0}),
        "stage 3, adapters beside 16 bits, dropout": _way(3, half, lora=adapters),
        "stage 0, adapters in fp16": _way(
            0, {"precision": "fp16"}, env={FP16_ON_CPU: "1"}, lora=adapters
        ),
        "stage 3, experts with a loss of their router": _way(
            3, model={"config": {**ROUTED, "output_router_logits": True}}
        ),
        "stage 2, experts with a moved bias, accumulated": _way(
            2, {**PIECES, "router_bias_rate": 0.01}, model={"config": BIASED}
        ),
        "stage 3, saved beside training": _way(3, checkpoint={"every": 7, "asynchronous": True}),
        "stage 2, Adafactor": _way(2, {"optimizer": "adafactor"}),
        "stage 1, SGD": _way(1, {"optimizer": "sgd"}),
        "stage 1, Muon": _way(1, {"optimizer": "muon", "muon_learning_rate": 0.01}),
        "stage 3, Muon, bf16, optimizer on the host": _way(
            3, {**half, "optimizer": "muon"}, offload={"optimizer": "cpu"}
        ),
        "stage 3, sequences on 2 ranks": _together(3, model={"config": HEADS}),
        "stage 1, packed examples on 2 of 4 ranks, accumulated, bf16": _together(
            1,
            {**PIECES, **half, "activation_checkpointing": True},
            ranks=4,
            model={"path": str(setting.model)},
            data={**packed, "packing": True},
        ),
        "stage 3, layers on 2 ranks": _together(3, by="tensor_ranks", model={"config": PARTS}),
        "stage 2, layers on 2 of 4 ranks, accumulated, bf16": _together(
            2, {**PIECES, **half}, by="tensor_ranks", ranks=4, model={"config": PARTS}
        ),
        "stage 3, adapters, layers on 2 ranks": _together(
            3,
            by="tensor_ranks",
            model={"config": PARTS},
            lora={"rank": 4, "target_modules": ["q_proj", "down_proj"]},
        ),
        "stage 3, layers and sequences on 2 x 2 ranks": {
            **_way(3, ranks=4, model={"config": PARTS}),
            "zero": {"stage": 3, "tensor_ranks": 2, "sequence_ranks": 2},
        },
        "stage 3, preferences, accumulated": _way(
            3, PIECES, **preferences, model={"path": str(setting.model)}
        ),
        "stage 2, preferences, sequences on 2 ranks": _together(
            2,
            PIECES,
            **preferences,
            model={"config": {**PARTS, "vocab_size": VOCABULARY}},
        ),
    }


def _pairs(examples: Path) -> Path:
    """Preferences of these examples: an answer, and the same backwards."""
    path = examples.with_name("pairs.jsonl")
    with path.open("w", encoding="utf-8") as file:
        for line in examples.read_text("utf-8").splitlines():
            row = json.loads(line)
            answer = row["response"]
            pair = {"prompt": row["prompt"], "chosen": answer, "rejected": answer[::-1]}
            file.write(json.dumps(pair) + "\n")
    return path


def tree_of(changes: Mapping[str, Any], text: Path, steps: int) -> dict[str, Any]:
    """The job file of a way, of so many `steps`, at a rate that changes with each of them."""
    train = {"batch_size": BATCH, "schedule": "linear", "warmup_steps": 3, "learning_rate": 3e-3}
    own = {"steps": steps, **train, **changes.get("train", {})}
    saves = {"every": SAVED_EVERY, "keep_last": 2, **changes.get("checkpoint", {})}
    return job(text, **{"ranks": 2, **changes, "train": own, "checkpoint": saves})


def _way(stage: int, train: Mapping[str, Any] | None = None, **others: Any) -> Changes:
    return {"zero": {"stage": stage}, **({"train": dict(train)} if train else {}), **others}


def _together(
    stage: int,
    train: Mapping[str, Any] | None = None,
    *,
    by: str = "sequence_ranks",
    **others: Any,
) -> Changes:
    """Of ranks of which two compute each sequence, or each layer."""
    return {**_way(stage, train, **others), "zero": {"stage": stage, by: 2}}
