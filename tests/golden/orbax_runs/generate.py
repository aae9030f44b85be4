"""Checkpoints of a tiny model by Orbax itself, on four devices of the CPU.

    python -m pip install orbax-checkpoint flax optax "jax[cpu]" safetensors
    python -m tests.golden.orbax_runs.generate OUT [CASE ...]

Writes OUT/CASE/checkpoint, the directory of a `CheckpointManager` or of one item, and
OUT/CASE/truth.safetensors: the arrays that the program had in memory, named `name|role`. The tree
has the names of MaxText's Llama, with scanned layers, and is the state of one step of AdamW. In the
case `bf16`, weights and moments are bfloat16, as MaxText has them with `weight_dtype: bfloat16`.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
SEED, LAYERS, HIDDEN, HEADS, KV, HEAD, MLP, VOCAB = 7, 3, 8, 2, 1, 4, 12, 160
CASES: dict[str, dict[str, Any]] = {
    "ocdbt": {"use_ocdbt": True},
    "ocdbt-zarr3": {"use_ocdbt": True, "use_zarr3": True},
    "plain": {"use_ocdbt": False},
    "plain-zarr3": {"use_ocdbt": False, "use_zarr3": True},
    "bf16": {"use_ocdbt": True},
}
FEW = ("token_embedder.embedding|param", "decoder.decoder_norm.scale|param")


def weights() -> Any:
    """Return the tree of weights of MaxText's Llama; the norms are bfloat16."""
    np, jnp = import_module("numpy"), import_module("jax.numpy")
    drawn = np.random.default_rng(SEED)

    def kernel(*shape: int) -> Any:
        return {"kernel": jnp.asarray(drawn.normal(size=shape), jnp.float32)}

    def norm(*shape: int) -> Any:
        return {"scale": jnp.asarray(drawn.normal(size=shape), jnp.bfloat16)}

    layers = {
        "pre_self_attention_layer_norm": norm(HIDDEN, LAYERS),
        "post_self_attention_layer_norm": norm(HIDDEN, LAYERS),
        "self_attention": {
            "query": kernel(HIDDEN, LAYERS, HEADS, HEAD),
            "key": kernel(HIDDEN, LAYERS, KV, HEAD),
            "value": kernel(HIDDEN, LAYERS, KV, HEAD),
            "out": kernel(HEADS, LAYERS, HEAD, HIDDEN),
        },
        "mlp": {
            "wi_0": kernel(HIDDEN, LAYERS, MLP),
            "wi_1": kernel(HIDDEN, LAYERS, MLP),
            "wo": kernel(MLP, LAYERS, HIDDEN),
        },
    }
    embedding = {"embedding": jnp.asarray(drawn.normal(size=(VOCAB, HIDDEN)), jnp.float32)}
    head = kernel(HIDDEN, VOCAB)
    decoder = {"layers": layers, "decoder_norm": norm(HIDDEN), "logits_dense": head}
    return {"params": {"token_embedder": embedding, "decoder": decoder}}


def sharded(tree: Any) -> Any:
    """Shard every first dimension that four devices divide; replicate the rest."""
    jax = import_module("jax")
    sharding = jax.sharding
    mesh = sharding.Mesh(jax.devices(), ("fsdp",))

    def place(leaf: Any) -> Any:
        axes = ("fsdp",) if leaf.shape and leaf.shape[0] % 4 == 0 else ()
        spec = sharding.NamedSharding(mesh, sharding.PartitionSpec(*axes))
        return jax.device_put(leaf, spec)

    return jax.tree.map(place, tree)


def trained(tree: Any) -> Any:
    """Return the state after one step of AdamW that begins with the weights `tree`."""
    jax, optax = import_module("jax"), import_module("optax")
    train_state = import_module("flax.training.train_state")
    rate = optax.linear_schedule(1e-3, 0.0, 10)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate))
    state = train_state.TrainState.create(apply_fn=None, params=sharded(tree), tx=optimizer)
    gradients = jax.tree.map(lambda leaf: leaf * leaf - 0.5, state.params)
    return state.apply_gradients(grads=gradients)


def truth(state: Any) -> dict[str, Any]:
    """Return every weight and moment of the live state, named `name|role`."""
    jax, np = import_module("jax"), import_module("numpy")
    adam = state.opt_state[1][0]
    found = {}
    for role, tree in (("param", state.params), ("exp_avg", adam.mu), ("exp_avg_sq", adam.nu)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree["params"]):
            found[f"{'.'.join(each.key for each in path)}|{role}"] = np.asarray(leaf)
    return found


def in_bf16(tree: Any) -> Any:
    """Return 32 rows of the embedding, the last norm and the kernel of queries, in bfloat16."""
    jax, jnp = import_module("jax"), import_module("jax.numpy")
    decoder = tree["params"]["decoder"]
    query = {"layers": {"self_attention": {"query": decoder["layers"]["self_attention"]["query"]}}}
    kept = few(tree["params"])
    kept["params"]["decoder"] |= query
    kept["params"]["token_embedder"] = {
        "embedding": tree["params"]["token_embedder"]["embedding"][:32]
    }
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), kept)


def few(every: Any) -> Any:
    """Return the embedding and the last norm alone: without OCDBT every chunk is a file."""
    norm = {"decoder_norm": every["decoder"]["decoder_norm"]}
    return {"params": {"token_embedder": every["token_embedder"], "decoder": norm}}


def save(out: Path, options: dict[str, Any], state: Any) -> None:
    """Save as MaxText does: an item `items` of a step, next to a small item of another kind."""
    ocp = import_module("orbax.checkpoint")
    handlers = {"items": ocp.PyTreeCheckpointHandler(**options)}
    with ocp.CheckpointManager(out, item_handlers=handlers) as manager:
        manager.save(1, args=ocp.args.Composite(items=ocp.args.PyTreeSave(state)))
        manager.wait_until_finished()


def save_weights(out: Path, state: Any) -> None:
    """Save the weights alone as one item, as `StandardCheckpointer` does."""
    ocp = import_module("orbax.checkpoint")
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(out, state.params)
    checkpointer.wait_until_finished()


def main(out: Path, names: list[str]) -> None:
    """Write the cases with these names below `out`; without names, every case."""
    save_file = import_module("safetensors.numpy").save_file
    whole, half = trained(weights()), trained(in_bf16(weights()))
    for name in names or (*CASES, "weights"):
        state = half if name == "bf16" else whole
        every = truth(state)
        case = out.absolute() / name
        case.mkdir(parents=True)
        if name == "weights":
            save_weights(case / "checkpoint", state)
            held = {key: value for key, value in every.items() if key.endswith("|param")}
        else:
            is_whole = CASES[name]["use_ocdbt"]
            saved = state if is_whole else {"params": few(state.params["params"])}
            save(case / "checkpoint", CASES[name], saved)
            held = every if is_whole else {key: every[key] for key in FEW}
        save_file(held, case / "truth.safetensors")
        made = {module: import_module(module).__version__ for module in ("jax", "flax", "optax")}
        (case / "truth.json").write_text(json.dumps({"step": 1, "versions": made}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
