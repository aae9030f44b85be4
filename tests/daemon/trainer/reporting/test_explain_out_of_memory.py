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
