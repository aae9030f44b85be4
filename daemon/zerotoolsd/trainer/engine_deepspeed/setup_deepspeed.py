"""Imports DeepSpeed, and prepares what it needs on this machine: device, compiled operators, NVMe
directories.

The environment variables for DeepSpeed are set first, because DeepSpeed reads them when it is
imported.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils import file_baton

from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.io.files.optional_packages import REQUIREMENTS, install_command
from zerotools.jobs.jobfile_tables.deepspeed import ADAMS, config_value, device_of
from zerotools.jobs.jobfile_tables.spec import FP16_ON_CPU, JobSpec
from zerotools.jobs.preflight import async_io
from zerotoolsd.trainer.engine_deepspeed.operator_build_directory import (
    BUILDS,
    BuildReporter,
    install_batons,
    use_own_directory,
)

_LASTING = re.compile(
    r"CUDA_HOME|unable to JIT load|Ninja is required|detected CUDA version .* mismatches", re.I
)
"""Pattern of errors of torch and DeepSpeed about missing programs. A restart would fail in the same
way.
"""


def import_deepspeed(spec: JobSpec, teller: BuildReporter) -> Any:
    """Import DeepSpeed for the device of `spec` and return the module.

    `teller` reports the progress of compiling operators.

    Raises:
        BadRequest: DeepSpeed is not installed for this interpreter.
    """
    os.environ["DS_ACCELERATOR"] = spec.device  # the submitter's shell may have set another one
    programs = Path(sys.executable).parent
    if (programs / "ninja").exists():
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    _compile_by_turns(teller)
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        if error.name != "deepspeed":
            raise
        raise BadRequest(
            f"{sys.executable} has no deepspeed, which the job's engine needs; run "
            f"{install_command(REQUIREMENTS['deepspeed'])}, or set python in the job file to "
            "another interpreter"
        ) from None
    deepspeed.utils.logger.setLevel(logging.WARNING)
    # Of collectives that torch renamed; DeepSpeed calls them in every step.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    if spec.device == "cpu" and spec.env.get(FP16_ON_CPU) == "1":
        _allow_fp16_on_cpu(deepspeed)
    if spec.device == "cpu" and not _can_compile():
        _without_operators_of_the_group(deepspeed)
    return deepspeed


def _compile_by_turns(teller: BuildReporter) -> None:
    own = use_own_directory(torch.__version__)
    loaded = sys.modules.get("torch.utils.cpp_extension")
    batons = [file_baton] if loaded is None else [file_baton, loaded]
    install_batons(batons, uses_kernel_lock=own, teller=teller)


@contextmanager
def refused_by_deepspeed() -> Iterator[None]:
    """Return a context manager that converts DeepSpeed's errors about its configuration into
    BadRequest.

    BadRequest ends the job, because a restart would fail again.

    Raises:
        BadRequest: DeepSpeed rejects the configuration.
    """
    try:
        yield
    except (ZerotoolsError, MemoryError):
        raise
    except Exception as error:  # assertions of DeepSpeed, KeyErrors, what pydantic raises
        text = " ".join(str(error).split())
        of_machine = isinstance(error, (OSError, RuntimeError))  # memory, other ranks, compilers
        if of_machine and not (isinstance(error, NotImplementedError) or _LASTING.search(text)):
            raise
        what = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise BadRequest(
            f"deepspeed.config: DeepSpeed rejects the configuration: {what}"
        ) from error


def _allow_fp16_on_cpu(deepspeed: Any) -> None:
    """Make DeepSpeed accept fp16 on CPUs.

    DeepSpeed's CPU accelerator reports that fp16 is not supported, but only fast kernels for fp16
    are missing.
    """
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True


def _can_compile() -> bool:
    return all(shutil.which(program) for program in (os.environ.get("CXX", "g++"), "ninja"))


def _without_operators_of_the_group(deepspeed: Any) -> None:
    """Disable DeepSpeed's shared-memory all-reduce on CPUs, so that gloo's all-reduce is used.

    DeepSpeed compiles its all-reduce when the process group is made, and fails if it cannot
    compile.
    """
    builder = deepspeed.accelerator.get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is not None:
        deepspeed.ops.__compatible_ops__[builder.name] = False


def make_adam_ready(
    deepspeed: Any, config: dict[str, Any], log_line: Callable[[str], None]
) -> None:
    """Set torch's Adam in `config`, if DeepSpeed's Adam cannot be compiled on this machine.

    `log_line` is called with a line about this change, or about the directory in which DeepSpeed's
    Adam is compiled.

    Raises:
        BadRequest: DeepSpeed's Adam cannot be compiled, but torch's Adam lacks a setting.
    """
    if str(config_value(config, "optimizer.type", "")).lower() not in ADAMS:
        return
    if config_value(config, "optimizer.params.torch_adam") is True:
        return
    offloaded = device_of(config, "optimizer") != "none"
    if offloaded:
        _cache_cpu_info()
    adam = "DeepSpeedCPUAdam" if offloaded else "FusedAdam"
    accelerator = deepspeed.accelerator.get_accelerator()
    builder = accelerator.create_op_builder("CPUAdamBuilder" if offloaded else "FusedAdamBuilder")
    if builder is not None and deepspeed.git_version_info.installed_ops.get(builder.name):
        return
    if (why := _not_built(deepspeed, builder)) is not None:
        if config_value(config, "optimizer.params.bias_correction", True) is False:
            raise BadRequest(
                f"deepspeed.config optimizer.params.bias_correction = false: {adam} cannot be "
                f"built here ({why}), and torch's Adam always corrects; remove the key, or install "
                "what is missing"
            )
        with_torch_adam(config)
        log_line(
            f"note: {adam} cannot be built here ({why}), so torch_adam is set to true in the "
            "optimizer's params"
        )
        return
    directory = os.environ.get(BUILDS)
    if directory and not (Path(directory) / builder.name / f"{builder.name}.so").exists():
        log_line(f"compiling {adam} into {directory}: this takes minutes, and happens only once")


def _not_built(deepspeed: Any, builder: Any) -> str | None:
    """Return the reason why this machine cannot compile the operator of `builder`; None if it
    can.
    """
    if builder is None or not _can_compile():
        return "it needs g++ and ninja"
    building = deepspeed.ops.op_builder.builder
    if isinstance(builder, building.CUDAOpBuilder) and not builder.is_rocm_pytorch():
        try:  # what the build asks; `is_compatible` of such builders does not
            major, minor = building.installed_cuda_version()
        except Exception as error:  # MissingCUDAException, and what older releases raise
            return f"it needs nvcc: {' '.join(str(error).split())}"
        if not str(torch.version.cuda).startswith(f"{major}."):
            return f"nvcc has CUDA {major}.{minor}, but torch has CUDA {torch.version.cuda}"
    return None if builder.is_compatible(False) else "DeepSpeed reports it as not compatible"


def _cache_cpu_info() -> None:
    """Make py-cpuinfo cache its result.

    DeepSpeed's CPU Adam calls py-cpuinfo three times, and each call takes a second.
    """
    with suppress(ImportError):
        import cpuinfo

        cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)


def with_torch_adam(config: dict[str, Any]) -> None:
    """Change `config` so that torch's Adam is used, with the default values of DeepSpeed's Adam."""
    parameters = config["optimizer"].setdefault("params", {})
    parameters["torch_adam"] = True
    parameters.pop("bias_correction", None)  # torch's own refuses the key
    parameters.setdefault("weight_decay", 0.0)  # torch's own default differs


def make_nvme_ready(
    config: dict[str, Any], output: Path, rank: int, device: str, log_line: Callable[[str], None]
) -> None:
    """Prepare the offload of this rank's state to NVMe, as `config` describes it.

    `output` is the job's output directory. `config` is changed: see `make_own_directories`.

    Raises:
        BadRequest: the operator async_io cannot be compiled here, or a directory cannot be made.
    """
    if (why := async_io.why_no_async_io(device)) is not None:
        raise BadRequest(async_io.async_io_refusal(why))
    builds = os.environ.get(BUILDS)
    if builds and not (Path(builds) / "async_io" / "async_io.so").exists():
        log_line(f"compiling async_io into {builds}: this takes minutes, and happens only once")
    make_own_directories(config, output, rank)


def make_own_directories(config: dict[str, Any], output: Path, rank: int) -> None:
    """Replace each `nvme_path` in `config` by an empty directory for this rank of this job.

    The names of DeepSpeed's files contain only the rank, and DeepSpeed does not remove the files.
    So each rank of each job has its own directory. The job is identified by its output directory
    `output`. The directory is removed when the run ends. After a kill, it is removed when the job
    starts again.

    Raises:
        BadRequest: a directory cannot be made.
    """
    own = dict(_own_directories(config, output, rank))
    for directory in set(own.values()):
        try:
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir(parents=True)
        except OSError as error:
            raise BadRequest(f"nvme_path: {directory}: {error.strerror}") from None
    for section, directory in own.items():
        config["zero_optimization"][section]["nvme_path"] = str(directory)


def remove_own_directories(spec: JobSpec, rank: int) -> None:
    """Remove the directories of this rank on NVMe, if the job has any."""
    if spec.engine != "deepspeed":
        return
    for _, directory in _own_directories(spec.deepspeed.tree, Path(spec.output_dir or ""), rank):
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(OSError):  # that of other ranks is still there
            directory.parent.rmdir()


def _own_directories(
    config: Mapping[str, Any], output: Path, rank: int
) -> Iterator[tuple[str, Path]]:
    name = f"zerotools-{hashlib.sha256(os.fsencode(output.absolute())).hexdigest()[:16]}"
    for what in ("optimizer", "param"):
        if device_of(config, what) == "nvme":
            section = f"offload_{what}"
            path = Path(config["zero_optimization"][section]["nvme_path"])
            yield section, path / name / f"rank{rank}"
