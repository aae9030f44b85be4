"""What transformers says of names and shapes: one process for all cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.forked_programs import forked_programs
from tests.maps.models import built_without_values
from zerotools.core.errors import Unsupported
from zerotools.maps.hub_tensor_names import NameFaults
from zerotools.ops.weights import try_transformers_load
from zerotools.ops.weights.try_transformers_load import Unbuildable, trial_loads

MIXTRAL = ".block_sparse_moe.experts.{}.w{}.weight"


@pytest.mark.torch
def test_what_is_missing_unexpected_and_of_another_shape(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config, memory, _ = built_without_values("mixtral", tie_word_embeddings=True)
    hub = {name: shape for name, shape in memory.items() if ".mlp." not in name}
    for layer in ("model.layers.0", "model.layers.1"):
        hub[f"{layer}.block_sparse_moe.gate.weight"] = (4, 32)
        for expert in range(4):
            for number, shape in ((1, (24, 32)), (2, (32, 24)), (3, (24, 32))):
                hub[layer + MIXTRAL.format(expert, number)] = shape
    lost = "model.layers.1" + MIXTRAL.format(2, 3)
    cases: list[dict[str, Any]] = [
        memory,
        hub,
        {name: shape for name, shape in hub.items() if name != lost},
        {**hub, "v_head.weight": (1, 32)},
        {**hub, "model.norm.weight": (31,)},
        {name: shape for name, shape in hub.items() if name != "model.embed_tokens.weight"},
    ]
    with forked_programs(tmp_path):
        found = trial_loads(config, cases)
    assert [each.faults.count for each in found] == [0, 0, 1, 1, 1, 0]
    assert found[2].faults.missing == ("model.layers.1.mlp.experts.gate_up_proj",)
    assert found[3].faults == NameFaults(unexpected=("v_head.weight",))
    assert found[4].faults == NameFaults(wrong=(("model.norm.weight", (31,), (32,)),))
    assert found[5].renamed == {"lm_head.weight": "model.embed_tokens.weight"}
    assert found[0].ties == found[5].renamed


def test_without_transformers_it_cannot_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(try_transformers_load, "_NEEDED", ("json", "no_such_package"))
    with pytest.raises(Unsupported, match=r"^no_such_package is not installed$"):
        trial_loads({"model_type": "llama"}, [{}])


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise KeyError('no such size')", "cannot build the model: KeyError: 'no such size'"),
        ('print(\'{"refused": "does not know it"}\')', "^does not know it$"),
        ("import os; os._exit(9)", "cannot build the model: it ended with 9"),
        ("import time; time.sleep(60)", r"^transformers did not answer within [\d.]+ s$"),
    ],
)
def test_a_trial_that_fails_says_why(
    program: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(try_transformers_load, "_NEEDED", ())
    monkeypatch.setattr(try_transformers_load, "_PROGRAM", program)
    monkeypatch.setattr(try_transformers_load, "TRANSFORMERS_SECONDS", 2.0)
    with pytest.raises(Unsupported, match=said):
        trial_loads({"model_type": "llama"}, [{}])


@pytest.mark.torch
def test_a_second_class_need_not_be_buildable(tmp_path: Path) -> None:
    """The usual class of Llama 4 is its language model, which wants the inner config."""
    pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 32, "intermediate_size": 16, "intermediate_size_mlp": 16, "head_dim": 8,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_local_experts": 2, "vocab_size": 96, "pad_token_id": 0,
    }  # fmt: skip
    config = {
        "model_type": "llama4",
        "architectures": ["Llama4ForConditionalGeneration"],
        "text_config": {"model_type": "llama4_text", **sizes},
    }
    with forked_programs(tmp_path):
        found = trial_loads(config, [{"none.weight": (1,)}])
    assert found[0].faults.unexpected == ("none.weight",)


@pytest.mark.full
@pytest.mark.torch
def test_config_json_is_read_as_transformers_reads_it() -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "mamba2", "time_step_limit": [0.0, {"__float__": "Infinity"}]}
    config |= {"hidden_size": 8, "num_heads": 2, "head_dim": 8, "state_size": 4, "n_groups": 1}
    found = trial_loads({**config, "num_hidden_layers": 1}, [{}])
    assert "backbone.embeddings.weight" in found[0].faults.missing


@pytest.mark.full
@pytest.mark.torch
def test_a_config_of_a_known_type_that_is_wrong_is_told_from_others() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(Unbuildable, match="hidden_size"):
        trial_loads({"model_type": "mamba2", "hidden_size": "x"}, [{}])
