"""What DeepSpeed can compile where there is no nvcc, and which of its errors no restart mends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerotools.core.errors import BadRequest

pytestmark = [pytest.mark.torch, pytest.mark.deepspeed]


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The package, as on a machine with a compiler for C++ and none for CUDA."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    found = pytest.importorskip("deepspeed")
    from torch.utils import cpp_extension

    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    for program in ("g++", "ninja"):
        (tmp_path / program).touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return found


@pytest.mark.parametrize(
    ("nvcc", "why"),
    [
        (None, "it needs nvcc: CUDA_HOME does not exist"),
        ("release 11.8, V11.8.89", "nvcc is of CUDA 11.8, and torch of "),
    ],
)
def test_without_nvcc_torchs_adam_serves_on_gpus(
    deepspeed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nvcc: str | None, why: str
) -> None:
    from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder
    from torch.utils import cpp_extension

    from zerotoolsd.trainer.engine_deepspeed.place import make_adam_ready

    if nvcc is not None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "nvcc").write_text(f"#!/bin/sh\necho {nvcc}\n")
        (tmp_path / "bin" / "nvcc").chmod(0o700)
        monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    assert FusedAdamBuilder().is_compatible(False)  # what it says on every machine
    on_gpus = SimpleNamespace(create_op_builder=lambda name: FusedAdamBuilder())
    package = SimpleNamespace(
        accelerator=SimpleNamespace(get_accelerator=lambda: on_gpus),
        ops=deepspeed.ops,
        git_version_info=deepspeed.git_version_info,
    )
    config: dict[str, Any] = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
    said: list[str] = []
    make_adam_ready(package, config, said.append)
    assert config["optimizer"]["params"]["torch_adam"] is True
    assert f"FusedAdam cannot be built here ({why}" in said[0]


def test_an_optimizer_that_needs_nvcc_is_refused_at_submit(deepspeed: Any) -> None:
    from zerotools.jobs.preflight.deepspeed_accepts import refusal

    config = {"train_batch_size": 1, "optimizer": {"type": "Lamb", "params": {"lr": 1e-3}}}
    said = refusal(config, 1, "cuda")
    assert said is not None
    assert said.startswith("it cannot compile fused_lamb for lamb here: CUDA_HOME does not exist")
    assert refusal(config, 1, "cpu") is None


@pytest.mark.parametrize(
    ("error", "is_of_the_job"),
    [
        (OSError("CUDA_HOME environment variable is not set. Please set it"), True),
        (RuntimeError("Unable to JIT load the async_io op due to it not being compatible"), True),
        (RuntimeError("Ninja is required to load C++ extensions"), True),
        (AssertionError("stage3_max_live_parameters"), True),
        (NotImplementedError("no such optimizer"), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_what_is_not_installed_is_not_tried_again(error: Exception, is_of_the_job: bool) -> None:
    from zerotoolsd.trainer.engine_deepspeed.place import refused_by_deepspeed

    with pytest.raises(BadRequest if is_of_the_job else type(error)), refused_by_deepspeed():
        raise error
