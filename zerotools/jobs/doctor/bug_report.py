"""Make a bug report without secrets: versions, machine, settings and the findings of the checks."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from zerotools.io.files.optional_packages import REQUIREMENTS
from zerotools.jobs.doctor.finding import DoctorFinding
from zerotools.jobs.doctor.python_and_compilers import answer_of
from zerotools.jobs.text.mask_secrets import mask_tree
from zerotools.sensors.snapshot import Snapshot
from zerotools.version import version as zerotools_version

SCHEMA = "zerotools.report/1"
SECONDS = 30.0
SETTINGS = (
    *(
        "CUDA_",
        "NVIDIA_",
        "NCCL_",
        "GLOO_",
        "TORCH",
        "PYTORCH_",
        "DS_",
        "DEEPSPEED_",
        "ACCELERATE_",
    ),
    *("OMP_", "MKL_", "HF_", "TRANSFORMERS_", "ZEROTOOLS_", "SLURM_", "LD_", "LANG", "LC_"),
)
"""Name prefixes of the environment variables that a report contains.

All other variables are left out.
"""
PRIVATE_NAME_PARTS = re.compile(
    r"HOST|NODELIST|NODENAME|NODE_ALIASES|ADDR|USER|ACCOUNT|CLUSTER_NAME|_UID|_GID"
)
"""Parts of the names of variables that a report leaves out, because their values name a machine
or a user.
"""
OTHER_PACKAGES = ("safetensors", "numpy", "accelerate", "ml_dtypes", "bitsandbytes", "nvidia-ml-py")
ASK_VERSIONS = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = None
print(json.dumps({"python": sys.version.split()[0], "packages": found}))
"""


def bug_report(
    findings: Iterable[DoctorFinding],
    *,
    python: str,
    snapshot: Snapshot,
    daemon_version: str | None,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return the contents of a bug report, as values for JSON.

    `python` is the interpreter of the user's jobs. Secrets are replaced by `***`, the home
    directory by `~`. Variables with names of machines or users are left out.
    """
    report = {
        "schema": SCHEMA,
        "zerotools": zerotools_version(),
        "daemon": daemon_version,
        "system": {"platform": platform.platform(), "libc": " ".join(platform.libc_ver())},
        "host": {
            "cpus": snapshot.host.cpu_count,
            "memory_total_bytes": snapshot.host.memory_total_bytes,
        },
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "memory_total_bytes": gpu.memory_total_bytes,
                "compute_capability": gpu.compute_capability,
                "error": gpu.error,
            }
            for gpu in snapshot.gpus
        ],
        "own_python": {"python": platform.python_version(), "packages": _own_packages()},
        "job_python": job_packages(python),
        "environment": {
            name: value
            for name, value in sorted(environment.items())
            if name.startswith(SETTINGS) and PRIVATE_NAME_PARTS.search(name) is None
        },
        "findings": [finding.to_json() for finding in findings],
    }
    masked: dict[str, Any] = _without_home(mask_tree(report), environment.get("HOME", ""))
    return masked


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write the bug report as JSON to the new file `path`. Only the file's owner may read it.

    Raises:
        FileExistsError: the file exists.
        OSError: the file cannot be written.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(report, stream, indent=2)
        stream.write("\n")


def job_packages(python: str, seconds: float = SECONDS) -> dict[str, Any] | str:
    """Return the versions of Python and of the packages that jobs need: `{"python": str,
    "packages": {...}}`.

    If the interpreter `python` does not answer within `seconds`, return the reason as text.

    A package that is not installed has the version None. Only the metadata of packages is read; no
    package is imported.
    """
    names = sorted({*map(_name, REQUIREMENTS.values()), *OTHER_PACKAGES})
    return answer_of(python, ASK_VERSIONS, names, seconds=seconds)


def _own_packages() -> dict[str, str | None]:
    """Return the versions of the packages that zerotools requires, as installed for this
    interpreter."""
    needed = [each for each in requires("zerotools") or () if "extra ==" not in each]
    return {name: _version(name) for name in sorted(map(_name, needed))}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _name(requirement: str) -> str:
    """Return the package name in a requirement such as `torch>=2.7; extra == "train"`."""
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), None)
    return requirement[:end]


def _without_home(tree: Any, home: str) -> Any:
    if isinstance(tree, str):
        home = home.rstrip("/")  # and /home/ann is no part of /home/anna
        return re.sub(rf"{re.escape(home)}(?![\w.-])", "~", tree) if home else tree
    if isinstance(tree, Mapping):
        return {name: _without_home(value, home) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_without_home(each, home) for each in tree]
    return tree
