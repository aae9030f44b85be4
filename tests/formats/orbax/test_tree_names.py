"""Names and roles of arrays in saved trees."""

from __future__ import annotations

from zerotools.core.checkpoint import Key
from zerotools.formats.orbax.tree_names import name_arrays


def names(*paths: str) -> dict[str, Key]:
    found = name_arrays(tuple(path.split(".")) for path in paths)
    return {".".join(path): key for path, key in found.keys.items()}


def test_variables_that_maxtext_does_not_train_are_buffers() -> None:
    """Of DeepSeek V3, MaxText 0.2.5 saves the biases of routers there."""
    layer, above = "decoder.moe_layers.MoeBlock_0", "nnx_aux.model"
    random = (f"{above}.{layer}.rngs.params.key", f"{above}.decoder.dropout.count")
    bias = f"{above}.{layer}.gate.bias"
    found = names(f"params.params.{layer}.gate.kernel", bias, *random, "opt_state.0.count")
    assert found[bias] == Key(bias, "buffer")
    assert {found[path].role for path in random} == {"state"}
    assert found[f"params.params.{layer}.gate.kernel"] == Key(f"{layer}.gate.kernel", "param")
