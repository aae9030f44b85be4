from __future__ import annotations

from dataclasses import replace

from tests.jobs.jobfile.test_parse import parsed
from zerotoolsd.trainer.reporting.memory_advice import settings_to_try


def test_a_smaller_micro_batch_comes_first_and_divides_the_share() -> None:
    spec = parsed(train__batch_size=24, train__micro_batch_size=6)
    assert settings_to_try(spec) == [
        "train.micro_batch_size = 4 (it is 6 now; batch_size stays)",
        "train.activation_checkpointing = true",
    ]
    assert settings_to_try(parsed(train__batch_size=24))[0].startswith("train.micro_batch_size = 6")


def test_what_is_set_already_is_not_proposed() -> None:
    lean = {"train__batch_size": 2, "train__activation_checkpointing": True}
    assert settings_to_try(parsed(**lean, zero={"stage": 1})) == [
        "zero.stage = 2 (it is 1 now)",
        'offload.optimizer = "cpu"',
    ]
    assert settings_to_try(parsed(**lean, train__precision="fp32")) == [
        'train.precision = "bf16"',
        'offload.optimizer = "cpu"',
    ]
    old = settings_to_try(parsed(**lean, train__precision="fp32"), half="fp16")
    assert old[0] == 'train.precision = "fp16"'
    alone = parsed(**{**lean, "train__batch_size": 1}, ranks=1, offload={"params": "cpu"})
    assert settings_to_try(alone) == ["a shorter data.sequence_length", "more GPUs"]
    two = parsed(**lean, ranks=2, offload={"params": "cpu"})
    together = "zero.sequence_ranks = 2 (ranks that compute each sequence together)"
    assert settings_to_try(two)[0] == together
    layers = {"stage": 3, "tensor_ranks": 2}
    four = parsed(**lean, ranks=4, zero=layers, offload={"params": "cpu"})
    assert together not in settings_to_try(replace(four, ranks=2))
    one_each = replace(four, train=replace(four.train, micro_batch_size=1))
    assert settings_to_try(one_each)[0] == together


def test_where_state_is_most_of_it_a_smaller_batch_comes_later() -> None:
    assert settings_to_try(parsed(zero={"stage": 2}), mostly_state=True) == [
        "zero.stage = 3 (it is 2 now)",
        'offload.optimizer = "cpu"',
    ]
    offloaded = parsed(offload={"optimizer": "cpu"})
    assert settings_to_try(offloaded, mostly_state=True, limit=1) == [
        'zero.stage = 3 with offload.params = "cpu"'
    ]


def test_sums_of_whole_gradients_are_the_first_to_go() -> None:
    local = parsed(train__micro_batch_size=2, train__accumulate="local")
    for mostly_state in (False, True):
        assert (
            settings_to_try(local, mostly_state=mostly_state)[0] == 'train.accumulate = "sharded"'
        )
    assert settings_to_try(parsed(train__micro_batch_size=2))[0].startswith(
        "train.micro_batch_size"
    )


def test_a_smaller_batch_that_would_take_more_is_proposed_with_sums_of_parts() -> None:
    """One step at stage 1 is one batch: of two, whole gradients would be summed in fp32."""
    with_sums = 'train.micro_batch_size = 2 with train.accumulate = "sharded" (it is 4 now; '
    assert settings_to_try(parsed(zero={"stage": 1}))[0].startswith(with_sums)
    local = parsed(zero={"stage": 3}, train__accumulate="local")
    assert settings_to_try(local)[0].startswith(with_sums)
    # There all gradients are whole and fp32 in any case.
    assert " with " not in settings_to_try(parsed(zero={"stage": 0}))[0]


def test_what_deepspeeds_json_says_is_proposed_in_its_words() -> None:
    offload = {"offload_optimizer": {"device": "cpu"}}
    section: dict[str, object] = {"stage": 2, **offload}
    tree = {"engine": "deepspeed", "zero": {"stage": 2}}
    spec = parsed(**tree, deepspeed={"config": {"zero_optimization": section}})
    assert settings_to_try(spec, mostly_state=True) == [
        "deepspeed.config zero_optimization.stage = 3 (it is 2 now)",
        "deepspeed.config zero_optimization.stage = 3 with "
        'zero_optimization.offload_param.device = "cpu"',
    ]
    del section["offload_optimizer"]
    spec = parsed(**tree, deepspeed={"config": {"zero_optimization": section}})
    wanted = 'deepspeed.config zero_optimization.offload_optimizer.device = "cpu"'
    assert settings_to_try(spec, mostly_state=True)[1] == wanted
