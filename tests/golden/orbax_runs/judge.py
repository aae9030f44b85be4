"""Restore an item that zerotools wrote by Orbax itself, and compare every byte.

    python -m pip install orbax-checkpoint "jax[cpu]" safetensors
    python -m tests.golden.orbax_runs.judge OUT TRUTH.safetensors

OUT is an output of `zerotools convert --to orbax`, and TRUTH has its weights under their names: the
source, or for `--map-to maxtext` the result of MaxText's own conversion. The last way is how
MaxText loads `load_parameters_path` (`src/maxtext/common/checkpointing.py`, load_params_from_path).
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def nested(arrays: dict[str, Any]) -> Any:
    """Return the arrays as a tree of dicts, by the words of their names."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *above, last = name.split(".")
        place = tree
        for word in above:
            place = place.setdefault(word, {})
        place[last] = array
    return {"params": {"params": tree}}


def compare(how: str, restored: Any, arrays: dict[str, Any]) -> None:
    """Raise an error if the restored tree differs from the arrays."""
    jax, np = import_module("jax"), import_module("numpy")
    leaves = jax.tree_util.tree_leaves_with_path(restored)
    found = {".".join(key.key for key in path[2:]): np.asarray(leaf) for path, leaf in leaves}
    if found.keys() != arrays.keys():
        raise SystemExit(f"{how}: other names, {sorted(found.keys() ^ arrays.keys())[:3]}")
    for name, array in arrays.items():
        there = found[name]
        if (there.dtype, there.shape) != (array.dtype, array.shape):
            raise SystemExit(f"{how}: {name} is {there.dtype} {there.shape}")
        if there.tobytes() != array.tobytes():
            raise SystemExit(f"{how}: {name} has other elements")
    print(f"{how}: {len(found)} arrays are equal")


def main(out: Path, truth: Path) -> None:
    """Restore `out` in each way, and compare it with the arrays in `truth`."""
    jax, ocp = import_module("jax"), import_module("orbax.checkpoint")
    v1 = import_module("orbax.checkpoint.experimental.v1")
    arrays = import_module("safetensors.numpy").load_file(truth)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        nested(arrays),
    )
    out = out.absolute()
    compare("StandardCheckpointer", ocp.StandardCheckpointer().restore(out), arrays)
    compare("with a sharding", ocp.StandardCheckpointer().restore(out, wanted), arrays)
    compare("PyTreeCheckpointer", ocp.PyTreeCheckpointer().restore(out), arrays)
    compare("v1", v1.load_pytree(out, wanted), arrays)
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)
    inner = wanted["params"]
    arguments = {"params": ocp.checkpoint_utils.construct_restore_args(inner)}
    restored = ocp.Checkpointer(handler).restore(
        out, item={"params": inner}, transforms={}, restore_args=arguments
    )
    compare("MaxText", restored, arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
