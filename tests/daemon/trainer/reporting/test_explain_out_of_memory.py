from __future__ import annotations

from dataclasses import replace

import pytest

from tests.jobs.jobfile.test_parse import parsed
from zerotoolsd.trainer.rank.rank_errors import (
    EXIT_BAD_JOB,
    EXIT_CRASH,
    OutOfGpuMemory,
    TooLargeForGpu,
    exit_code,
    one_line,
)
from zerotoolsd.trainer.reporting.explain_out_of_memory import settings_to_try

pytestmark = pytest.mark.torch

SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.92 GiB of "
    "which 1.21 GiB is free. Process 812 has 5.10 GiB memory in use. Including non-PyTorch memory, "
    "this process has 6.71 GiB memory in use. Of the allocated memory 6.02 GiB is allocated by "
    "PyTorch, and 91.30 MiB is reserved by PyTorch but unallocated."
)


def test_the_sentence_has_the_allocation_the_card_and_two_ways_out() -> None:
    import torch

    from zerotoolsd.trainer.reporting.explain_out_of_memory import explain_errors

    with pytest.raises(OutOfGpuMemory) as info, explain_errors(parsed(), lambda: 3):
        raise torch.OutOfMemoryError(SAID)
    assert one_line(info.value) == (
        "out of GPU memory after step 3: tried to allocate 2.00 GiB, GPU 0 has a total capacity of "
        "7.92 GiB of which 1.21 GiB is free, Process 812 has 5.10 GiB memory in use; to use less "
        "memory, try: train.micro_batch_size = 2 (it is 4 now; batch_size stays), or "
        "train.activation_checkpointing = true"
    )
    assert exit_code(info.value) == EXIT_CRASH
    with (
        pytest.raises(OutOfGpuMemory, match="thing new; to use less"),
        explain_errors(parsed(), int),
    ):
        raise torch.OutOfMemoryError("something\nnew")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            "CUDA error: out of memory\nCUDA kernel errors might be reported later",
            "CUDA error: out of memory;",
        ),
        (
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "when calling `cublasCreate(handle)`;",
        ),
        (
            "NCCL error in: x.cpp:3, unhandled cuda error\nCuda failure 2 'out of memory'",
            "Cuda failure 2 'out of memory';",
        ),
    ],
)
def test_what_allocates_beside_torch_is_explained_too(said: str, kept: str) -> None:
    from zerotoolsd.trainer.reporting.explain_out_of_memory import explain_errors

    with pytest.raises(OutOfGpuMemory) as info, explain_errors(parsed(), lambda: 0, has_fit=bool):
        raise RuntimeError(said)
    assert f"{kept} to use less memory, try: " in one_line(info.value)
    assert "might be reported later" not in one_line(info.value)
    with pytest.raises(RuntimeError, match="illegal"), explain_errors(parsed(), lambda: 0):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_what_never_fits_is_not_started_again() -> None:
    import torch

    from zerotoolsd.trainer.reporting.explain_out_of_memory import explain_errors

    alone = SAID.replace("Process 812 has 5.10 GiB memory in use. ", "")
    # A container has pids of its own, and NVML those of the host.
    contained = SAID.replace(
        "Including non-PyTorch memory, this process has 6.71 GiB memory in use. ", ""
    )
    beside = contained.replace("Process 812", "Process 3417 has 1.00 GiB memory in use. Process 8")
    for said, has_fit, kind, status in (
        (contained, False, TooLargeForGpu, EXIT_BAD_JOB),
        (beside, False, OutOfGpuMemory, EXIT_CRASH),
        (alone, False, TooLargeForGpu, EXIT_BAD_JOB),
        (alone, True, OutOfGpuMemory, EXIT_CRASH),
        (SAID, False, OutOfGpuMemory, EXIT_CRASH),  # the other process may be gone soon
    ):
        with (
            pytest.raises(kind) as info,
            explain_errors(parsed(), lambda: 0, has_fit=lambda fits=has_fit: fits),
        ):
            raise torch.OutOfMemoryError(said)
        assert exit_code(info.value) == status
        assert ("not retried" in one_line(info.value)) == (status == EXIT_BAD_JOB)


def test_the_sentence_has_what_was_expected_and_offload_where_that_is_most_of_it() -> None:
    from zerotoolsd.trainer.model.predict_state_memory import Prediction
    from zerotoolsd.trainer.reporting.explain_out_of_memory import explain_out_of_memory

    much = explain_out_of_memory(SAID, parsed(), 0, Prediction(6 << 30, 1 << 30, 0, 0))
    assert "(state of a rank: 6,144.0 MiB on the GPU and 1,024.0 MiB of gathered weights;" in much
    assert much.endswith(
        'memory, try: offload.optimizer = "cpu", or zero.stage = 3 with offload.params = "cpu"'
    )
    assert "micro_batch" in explain_out_of_memory(SAID, parsed(), 0, Prediction(1 << 30, 0, 0, 0))


def test_16_bits_are_those_in_which_the_gpu_computes() -> None:
    from zerotoolsd.trainer.reporting.explain_out_of_memory import half_type

    assert [half_type(of) for of in ((7, 0), (7, 5), (8, 0), (12, 0))] == ["fp16"] * 2 + [
        "bf16"
    ] * 2


def test_the_gpu_of_the_rank_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from zerotoolsd.trainer.reporting.explain_out_of_memory import half_type

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert half_type() == "fp16"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert half_type() == "bf16"


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
