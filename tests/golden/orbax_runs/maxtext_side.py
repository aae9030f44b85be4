"""The part of `maxtext_judge` that runs in MaxText's environment.

    python maxtext_side.py JOBS.json

JOBS.json is a list of objects with the keys of `Job`. Results are files in `Job.out`. A step that
fails writes its error to `STEP.error` instead.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict

os.environ |= {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"


class Job(TypedDict):
    """One model, in one dtype, with layers stacked or apart.

    Attributes:
        model: MaxText's name of the model.
        arguments: MaxText's options, as on its command line.
        hub: the directory of the model, under the names that MaxText expects.
        item: the Orbax item that zerotools wrote; empty if it does not write this form.
        out: the directory for the results.
        dtype: `float32` or `bfloat16`.
        tokens: the input of the model.
        steps: the names of the steps to run.
    """

    model: str
    arguments: list[str]
    hub: str
    item: str
    out: str
    dtype: str
    tokens: list[int]
    steps: list[str]


def restored(item: Path) -> dict[str, Any]:
    """Return the arrays of an item under their paths, without `params` at the beginning."""
    jax, np = import_module("jax"), import_module("numpy")
    ocp = import_module("orbax.checkpoint")
    checkpointer = ocp.PyTreeCheckpointer()
    tree = checkpointer.metadata(item).item_metadata.tree
    arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    found = checkpointer.restore(item, restore_args=arguments)["params"]["params"]
    leaves = jax.tree_util.tree_leaves_with_path(found)
    return {
        ".".join(str(each.key) for each in path): np.ascontiguousarray(leaf)
        for path, leaf in leaves
    }


def save(arrays: dict[str, Any], job: Job, name: str) -> None:
    save_file = import_module("safetensors.numpy").save_file
    save_file(arrays, Path(job["out"]) / f"{name}.safetensors")


def command_line(job: Job, *more: str) -> list[str]:
    base = Path(import_module("maxtext").__file__).parent / "configs/base.yml"
    return ["maxtext", str(base), f"model_name={job['model']}", *job["arguments"], *more]


def to_maxtext(job: Job) -> None:
    """Convert the model of the Hub into `out/run`, and save its arrays."""
    run = Path(job["out"]) / "run"
    import_module("maxtext.checkpoint_conversion.to_maxtext").main(
        command_line(job, f"base_output_directory={run}"),
        lazy_load_tensors=True,
        hf_model_path=job["hub"],
        save_dtype=job["dtype"],
        simulated_cpu_devices_count=2,
    )
    save(restored(run / "0/items"), job, "theirs")


def read_item(job: Job) -> None:
    """Save the arrays that Orbax restores from zerotools' item."""
    save(restored(Path(job["item"])), job, "ours")


def to_huggingface(job: Job) -> None:
    """Convert zerotools' item, or else MaxText's own run, to the Hub's tensors, and save these."""
    module, np = import_module("maxtext.checkpoint_conversion.to_huggingface"), sys.modules["numpy"]
    kept: dict[str, Any] = {}
    module.AutoTokenizer = type("NoTokenizer", (), {"from_pretrained": lambda *_, **__: None})
    module.gc = type("NoCollection", (), {"collect": lambda: 0})  # a second for each tensor
    module.save_model_files = lambda weights, *_, **__: kept.update(weights)
    if not module.FLAGS.is_parsed():
        module.FLAGS(["maxtext"])
    module.main(command_line(job, f"load_parameters_path={_item_or_run(job)}"))
    save({name: np.ascontiguousarray(value) for name, value in kept.items()}, job, "hub")


def compute_logits(job: Job) -> None:
    """Load zerotools' item by `from_pretrained`, and save the logits of MaxText's model. MaxText
    casts tied embeddings to bfloat16 for the logits; here they stay in float32."""
    jnp, np = import_module("jax.numpy"), import_module("numpy")
    decoders = import_module("maxtext.layers.nnx_decoders")
    decoders.attend_on_embedding = lambda query, table, *_: jnp.dot(query, table.T)
    pyconfig = import_module("maxtext.configs.pyconfig")
    creation = import_module("maxtext.utils.model_creation_utils")
    arguments = command_line(job, f"load_parameters_path={_item_or_run(job)}")
    model, _ = creation.from_pretrained(pyconfig.initialize(arguments))
    tokens = jnp.asarray([job["tokens"]] * 2, jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    logits = model(tokens, positions, jnp.ones_like(tokens), enable_dropout=False)
    logits = logits[0] if isinstance(logits, tuple) else logits
    save({"logits": np.asarray(logits[0], np.float32)}, job, "logits")


def train(job: Job) -> None:
    """Train from zerotools' item with a learning rate of 0, so that `out/trained` has its weights
    and an optimizer."""
    where = f"base_output_directory={Path(job['out']) / 'trained'}"
    more = ("learning_rate=0.0", "routed_bias_update_rate=0.0", "dataset_type=synthetic", "steps=2")
    how = ("checkpoint_period=1", "async_checkpointing=false", "enable_goodput_recording=false")
    start = f"load_parameters_path={job['item']}"
    import_module("maxtext.trainers.pre_train.train").main(
        command_line(job, where, start, *more, *how)
    )


def _item_or_run(job: Job) -> str:
    return job["item"] or str(Path(job["out"]) / "run/0/items")


STEPS: tuple[Callable[[Job], None], ...] = (
    to_maxtext, read_item, to_huggingface, compute_logits, train,
)  # fmt: skip


def main(file: Path) -> None:
    """Run the steps of each job, and write the versions of the libraries next to the file."""
    models = import_module("maxtext.checkpoint_conversion.utils.hf_model_configs")
    transformers = import_module("transformers")
    names = ("maxtext", "jax", "flax", "transformers")
    versions = {name: import_module(name).__version__ for name in names}
    file.with_name("versions.json").write_text(json.dumps(versions))
    for job in json.loads(file.read_text()):
        config = transformers.AutoConfig.from_pretrained(job["hub"])
        models.HF_MODEL_CONFIGS[job["model"]] = config
        for step in STEPS:
            if step.__name__ not in job["steps"]:
                continue
            try:
                step(job)
            except Exception:
                error = Path(job["out"]) / f"{step.__name__}.error"
                error.write_text(traceback.format_exc())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
