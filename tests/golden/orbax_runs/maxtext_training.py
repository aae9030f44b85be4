"""A checkpoint of a tiny DeepSeek V3 that MaxText itself trained and saved.

    python maxtext_training.py OUT

This runs in the environment of `scripts/judge maxtext`. OUT/checkpoint is the run's directory with
`1`, saved after two steps. OUT/truth.safetensors has the arrays that Orbax restores from it, named
`name|role`. Biases of routers are no parameters of the optimizer; MaxText changes them after each
step.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
CONFIG = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "q_lora_rank": 6,
    "kv_lora_rank": 4,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
}
OPTIONS = (
    *("base_emb_dim=8", "base_mlp_dim=12", "base_num_decoder_layers=3", "vocab_size=32"),
    *("base_num_query_heads=2", "base_num_kv_heads=2", "q_lora_rank=6", "kv_lora_rank=4"),
    *("qk_nope_head_dim=4", "qk_rope_head_dim=2", "v_head_dim=3", "num_experts=4"),
    *("shared_experts=1", "base_moe_mlp_dim=4", "num_experts_per_tok=2"),
    *("first_num_dense_layers=1", "model_name=deepseek3-671b", "override_model_config=true"),
    *("hardware=cpu", "skip_jax_distributed_system=true", "attention=dot_product"),
    *("sparse_matmul=false", "dtype=float32", "weight_dtype=float32", "max_target_length=8"),
    *("per_device_batch_size=1", "dataset_type=synthetic", "steps=2", "checkpoint_period=1"),
    *("async_checkpointing=false", "enable_goodput_recording=false", "run_name=run"),
    *("routed_bias_update_rate=0.01", "learning_rate=0.01"),
)
PLACES = {
    "param": ("params", "params"),
    "exp_avg": ("opt_state", 0, "mu", "params"),
    "exp_avg_sq": ("opt_state", 0, "nu", "params"),
}


def truth(item: Path) -> dict[str, Any]:
    """Return the weights, moments and biases of routers in an item."""
    jax, np = import_module("jax"), import_module("numpy")
    ocp = import_module("orbax.checkpoint")
    checkpointer = ocp.PyTreeCheckpointer()
    tree = checkpointer.metadata(item).item_metadata.tree
    arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    restored = checkpointer.restore(item, restore_args=arguments)

    def named(found: Any, above: str, role: str) -> dict[str, Any]:
        leaves = jax.tree_util.tree_leaves_with_path(found)
        paths = [(".".join(str(each.key) for each in path), leaf) for path, leaf in leaves]
        return {f"{above}{name}|{role}": np.ascontiguousarray(leaf) for name, leaf in paths}

    arrays: dict[str, Any] = {}
    for role, place in PLACES.items():
        found = restored
        for word in place:
            found = found[word]
        arrays |= named(found, "", role)
    others = named(restored["nnx_aux"]["model"], "nnx_aux.model.", "buffer")
    return arrays | {name: array for name, array in others.items() if "rngs." not in name}


def main(out: Path) -> None:
    """Train, and write the case `out`."""
    maxtext = import_module("maxtext")
    base = Path(maxtext.__file__).parent / "configs/base.yml"
    with tempfile.TemporaryDirectory() as scratch:
        arguments = ["maxtext", str(base), *OPTIONS, f"base_output_directory={scratch}"]
        import_module("maxtext.trainers.pre_train.train").main(arguments)
        run = Path(scratch) / "run/checkpoints"
        shutil.copytree(run / "1", out.absolute() / "checkpoint/1")
    arrays = truth(out.absolute() / "checkpoint/1/items")
    import_module("safetensors.numpy").save_file(arrays, out / "truth.safetensors")
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    versions = {name: import_module(name).__version__ for name in ("maxtext", "jax", "flax")}
    (out / "truth.json").write_text(json.dumps({"step": 2, "versions": versions}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
