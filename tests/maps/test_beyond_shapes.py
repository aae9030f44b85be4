from __future__ import annotations

from zerotools.maps.beyond_shapes import (
    has_several_ropes,
    normalises_experts,
    rope_of,
    rotary_share,
    usual_share,
)


def test_the_rope_of_old_and_of_new_configs() -> None:
    assert rope_of({"rope_scaling": {"type": "yarn"}}) == {"type": "yarn"}
    assert rope_of({"rope_parameters": {"rope_theta": 5}, "rope_scaling": {}}) == {"rope_theta": 5}
    assert rope_of({"rope_parameters": "yarn"}) == {}
    nested = {"rope_parameters": {"sliding_attention": {}, "full_attention": {"rope_theta": 7}}}
    assert rope_of(nested) == {"rope_theta": 7}
    assert has_several_ropes(nested)
    assert has_several_ropes({"rope_theta": 1e6, "rope_local_base_freq": 1e4})
    assert not has_several_ropes({"rope_parameters": {"rope_theta": 5}})


def test_a_share_that_is_not_said_is_that_of_transformers() -> None:
    assert rotary_share({"model_type": "glm4"}) is None
    assert usual_share({"model_type": "glm4"}) == 0.5
    assert usual_share({"model_type": "llama"}) == 1.0
    assert rotary_share({"rope_parameters": {"partial_rotary_factor": 0.75}}) == 0.75


def test_which_experts_weigh_1_together() -> None:
    assert normalises_experts({"model_type": "mixtral"})
    assert not normalises_experts({"model_type": "qwen3_moe"})
    assert normalises_experts({"model_type": "qwen3_moe", "norm_topk_prob": True})
    assert not normalises_experts({"model_type": "deepseek_v2", "norm_topk_prob": True})
