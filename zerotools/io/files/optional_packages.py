"""Packages that only some commands need, and the command that installs one of them here.

The command names the package itself, with the version that zerotools needs, and not an extra of
zerotools. So it works however zerotools was installed, and changes no other package.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from zerotools.core.errors import BadRequest

EXTRAS: Mapping[str, Mapping[str, str]] = {
    "daemon": {"aiohttp": "aiohttp>=3.9"},
    "train": {"torch": "torch>=2.8", "transformers": "transformers>=5.1"},
    "deepspeed": {"deepspeed": "deepspeed>=0.16"},
    "lora": {"peft": "peft>=0.18"},
    "qlora": {"bitsandbytes": "bitsandbytes>=0.50"},
    "scores": {"rouge_score": "rouge-score>=0.1.2", "sacrebleu": "sacrebleu>=2.4"},
    "evals": {"lm_eval": "lm_eval[hf]>=0.4.13"},
    "trackers": {"wandb": "wandb>=0.19", "mlflow": "mlflow-skinny>=3.0"},
    "plot": {"matplotlib": "matplotlib>=3.8"},
    "remote": {"huggingface_hub": "huggingface_hub>=1.0", "obstore": "obstore>=0.12.1"},
    "data": {"pyarrow": "pyarrow>=15"},
    "delta": {"zstandard": "zstandard>=0.22"},
    "orbax": {"tensorstore": "tensorstore>=0.1.71", "zstandard": "zstandard>=0.22"},
    "yaml": {"yaml": "PyYAML>=6.0"},
    "top": {"textual": "textual>=7.0"},
}
"""For each extra of pyproject.toml, its modules, each with the requirement that installs it."""
REQUIREMENTS: Mapping[str, str] = {
    module: requirement for extra in EXTRAS.values() for module, requirement in extra.items()
}


def install_command(*requirements: str, python: str | None = None) -> str:
    """Return the command that installs the requirements for the interpreter `python` (default: this
    one).

    The command depends on the tool that made the environment of that interpreter: `pipx inject` for
    pipx, `uv pip install` for `uv tool`, `uv venv` and environments without pip, otherwise pip.
    """
    python = python or sys.executable
    place = Path(python).parent.parent
    what = " ".join(map(shlex.quote, requirements))
    if (place / "pipx_metadata.json").exists():
        return f"pipx inject {shlex.quote(place.name)} {what}"
    if (place / "uv-receipt.toml").exists() or _made_by_uv(place) or _lacks_pip(python):
        return f"uv pip install --python {shlex.quote(python)} {what}"
    return f"{shlex.quote(python)} -m pip install {what}"


def is_older(version: str | None, requirement: str) -> bool:
    """Return whether the `version` of a package is older than the `requirement` allows.

    A build before a release counts as that release. An unknown version counts as new enough.
    """
    known = _numbers(version or "")
    return bool(known) and known < _numbers(requirement.partition(">=")[2])


def distribution_of(requirement: str) -> str:
    """Return the name under which the package of `requirement` is installed, without extras."""
    return re.split(r"[\[>]", requirement)[0]


def _numbers(version: str) -> list[int]:
    """Return the numbers at the beginning of `version`, without zeros at the end: [2, 1] for
    `2.1.0rc1`.
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def package_not_installed(what: str, module: str, instead: str = "") -> BadRequest:
    """Return the error that `what` needs the package of `module`, which is not installed. `instead`
    is an alternative for the user, such as "save the config as JSON".
    """
    requirement = REQUIREMENTS[module]
    name = distribution_of(requirement)
    rest = f", or {instead}" if instead else ""
    command = install_command(requirement)
    return BadRequest(f"{what} needs {name}, which is not installed; run {command}{rest}")


def _made_by_uv(place: Path) -> bool:
    try:
        lines = (place / "pyvenv.cfg").read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return any(line.partition("=")[0].strip() == "uv" for line in lines)


def _lacks_pip(python: str) -> bool:
    """Return whether the interpreter `python` has no pip. Only the interpreter of this process is
    checked; for all others the result is False.
    """
    return python == sys.executable and PathFinder.find_spec("pip") is None
