"""Select the environment variables that a job takes from the environment of its submission.

The selection is an allow-list: the paths of programs, libraries, caches and proxies, and the
settings of torch and of libraries that torch uses. A variable with the name of a secret is selected
only if the user names it. Variables of a shell or a launcher are never selected.

Example: the environment has `PATH`, `HF_HOME`, `HF_TOKEN`, `AWS_REGION` and `RANK`. By default the
job gets `PATH` and `HF_HOME`. With `--env HF_TOKEN --env AWS_REGION` it also gets these two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.spec import RESERVED_ENV, JobSpec
from zerotools.jobs.text.exec_limits import too_long
from zerotools.jobs.text.mask_secrets import is_secret_name

CAPTURED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
        *("VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH"),
        *("C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "PKG_CONFIG_PATH", "CC", "CXX"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("TOKENIZERS_PARALLELISM", "MAX_JOBS"),
    }
)
PROXIES = frozenset({"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"})
"""The names of proxy variables, in lower case. The same names in upper case are selected, too."""
PREFIXES = (
    *("LC_", "CONDA_", "MAMBA_", "PYENV_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "DATASETS_", "WANDB_", "MLFLOW_"),
    *("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "NCCL_", "GLOO_", "CUDA_", "CUDNN_"),
    *("CUBLAS_", "NVTE_", "NVIDIA_", "DS_", "DEEPSPEED_", "OMP_", "MKL_", "OPENBLAS_", "KMP_"),
)

SLURM_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "XDG_STATE_HOME", "ZEROTOOLS_SLURM_DIR")
"""Variables that are selected only for jobs under Slurm: the paths of the cluster's configuration
and of the job records.
"""


class Captured(NamedTuple):
    """The environment variables that were selected for a job, and names of variables that were not.

    Attributes:
        taken: name -> value of the selected variables.
        secret: names that are in the allow-list, but look like the name of a secret.
        not_text: names that are in the allow-list, but have values that are not UTF-8.
    """

    taken: dict[str, str]
    secret: tuple[str, ...]
    not_text: tuple[str, ...]


def capture_environment(environment: Mapping[str, str]) -> Captured:
    """Select the variables of `environment` that a job gets by default."""
    taken, secret, not_text = {}, [], []
    for name in sorted(environment):
        if not _is_listed(name):
            continue
        if is_secret_name(name):
            secret.append(name)
        elif _is_text(environment[name]):
            taken[name] = environment[name]
        else:
            not_text.append(name)
    return Captured(taken, tuple(secret), tuple(not_text))


def _is_listed(name: str) -> bool:
    if name in RESERVED_ENV:
        return False
    return name in CAPTURED or name.lower() in PROXIES or name.startswith(PREFIXES)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return False
    return True


def named_variables(options: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the options `--env NAME` and `--env NAME=VALUE` set.

    Raises BadRequest.
    """
    found: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not name or not name.isprintable():
            raise BadRequest(f"--env {option!r}: must be NAME or NAME=VALUE")
        if name in RESERVED_ENV:
            raise BadRequest(f"--env {name}: is set by the daemon for each rank; leave it out")
        if not equals and name not in environment:
            raise BadRequest(f"--env {name}: is not set here; set it, or give --env {name}=VALUE")
        value = value if equals else environment[name]
        if not _is_text(value):
            raise BadRequest(f"--env {name}: its value is not text in UTF-8")
        if (why := too_long(value, name)) is not None:
            raise BadRequest(f"--env {name}: is too long: {why}")
        found[name] = value
    return found


def with_environment(
    spec: JobSpec, captured: Mapping[str, str], named_ones: Mapping[str, str]
) -> JobSpec:
    """Return the job `spec` with the captured variables and the variables of `--env` options.

    If the job file has `captured_env`, its value is kept.
    """
    taken = captured if spec.captured_env is None else spec.captured_env
    return replace(spec, captured_env=dict(taken), env={**spec.env, **named_ones})
