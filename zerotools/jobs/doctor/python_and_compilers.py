"""Check the Python of jobs: torch, NCCL and transformers, and the compilers that they need.

The import of torch may take half a minute, or crash in a library, so a separate process does it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from zerotools.io.files.optional_packages import REQUIREMENTS, install_command, is_older
from zerotools.jobs.doctor.finding import DoctorFinding, ok, problem, warning
from zerotools.jobs.preflight.async_io import without_toolkit

IMPORT_SECONDS = 60.0
ASK = """
import json
found = {"torch": None, "cuda": None, "nccl": None, "transformers": None, "gpus": 0, "why": None}
try:
    import torch
    found["torch"] = torch.__version__
    found["cuda"] = torch.version.cuda
    found["gpus"] = torch.cuda.device_count()
    if torch.version.cuda and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception as error:
    found["why"] = f"{type(error).__name__}: {error}"
try:
    from importlib.metadata import PackageNotFoundError, version
    found["transformers"] = version("transformers")
except PackageNotFoundError:
    pass
print(json.dumps(found))
"""

Which = Callable[[str], str | None]


def ask_python(python: str, seconds: float = IMPORT_SECONDS) -> dict[str, Any] | str:
    """Return what the interpreter `python` has: the versions of torch, CUDA, NCCL and
    transformers, and the number of GPUs. If the interpreter does not answer, return the reason
    as text.
    """
    return answer_of(python, ASK, seconds=seconds)


def answer_of(
    python: str, program: str, arguments: Sequence[str] = (), *, seconds: float
) -> dict[str, Any] | str:
    """Run the code `program` with the interpreter `python`, and return the JSON object that it
    prints last. If it prints no object within `seconds`, return the reason as text.

    No module is imported from the working directory.
    """
    command = [python, "-c", program, *arguments]  # no -P, which Python 3.10 does not know
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False, cwd="/")
    except subprocess.TimeoutExpired:
        return f"did not answer within {seconds:g} s"
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return f"ended with status {done.returncode} when it listed its packages"
    return answer if isinstance(answer, dict) else "answered nonsense"


def check_python(
    python: str, answer: Mapping[str, Any] | str, *, has_gpus: bool
) -> Iterator[DoctorFinding]:
    """Check the interpreter `python` and its packages.

    `answer` is the result of `ask_python`. `has_gpus` is true if NVML lists GPUs.
    """
    if isinstance(answer, str):
        starts = shutil.which(python) is not None
        advice = f"try it: {python} -c 'import torch'" if starts else "check the path of the python"
        yield problem("torch", f"{python} {answer}", advice)
        return
    if answer.get("torch") is None:
        why = answer.get("why") or "no torch"
        yield warning(
            "torch",
            f"{python} cannot import torch ({why})",
            "install torch there, or name the python of each job in its job file",
        )
        return
    needed = REQUIREMENTS["torch"]
    if is_older(answer["torch"], needed):
        install = f"jobs need {needed}: {install_command(needed, python=str(python))}"
        yield problem("torch", f"{answer['torch']} of {python} is too old", install)
        return
    yield ok("torch", f"{answer['torch']} of {python}")
    if answer.get("transformers") is None:
        yield warning(
            "transformers",
            f"{python} does not have it",
            'jobs with engine = "torch" or "deepspeed" need it: '
            f"{install_command(REQUIREMENTS['transformers'], python=str(python))}",
        )
    if has_gpus:
        yield from _gpu_build(python, answer)


def _gpu_build(python: str, answer: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    if answer.get("cuda") is None:
        yield problem(
            "torch",
            f"{answer['torch']} of {python} is built without CUDA, and this machine has GPUs",
            "install a build with CUDA: https://pytorch.org/get-started/locally",
        )
    elif not answer.get("gpus"):
        yield problem(
            "torch",
            f"{answer['torch']} (CUDA {answer['cuda']}) sees no GPU, but NVML sees GPUs",
            "the driver may be too old for this CUDA, or CUDA_VISIBLE_DEVICES is set; see "
            "nvidia-smi",
        )
    elif answer.get("nccl") is None:
        yield warning("NCCL", f"torch of {python} has no NCCL", "jobs on several GPUs need it")
    else:
        yield ok("NCCL", str(answer["nccl"]))


def check_compilers(
    which: Which = shutil.which,
    without_toolkit: Callable[[], str | None] = without_toolkit,
    *,
    has_gpus: bool,
) -> Iterator[DoctorFinding]:
    """Check the compilers that torch.compile and DeepSpeed's operators call."""
    if not any(which(name) for name in ("c++", "g++", "clang++")):
        yield warning(
            "compilers",
            "PATH has no C++ compiler",
            "train.compile and DeepSpeed's Adam need one: install g++",
        )
    elif not which("ninja"):
        yield warning(
            "compilers", "PATH has no ninja", "DeepSpeed's operators need it: install ninja"
        )
    elif has_gpus and (why := without_toolkit()) is not None:
        yield warning(
            "compilers",
            why,
            "on GPUs torch's Adam replaces DeepSpeed's; DeepSpeed's Lamb, its Lion and its "
            "offload to NVMe are refused: install the CUDA toolkit of torch's version",
        )
    else:
        yield ok("compilers", "are there")
