"""Check that a job can log in to the experiment trackers that it names.

A job without a login writes the tracker's data to files.

Only variables and files are read, as wandb 0.31 does to find its key
(`sdk/lib/wbauth/authenticate.py`). The network is not used.
"""

from __future__ import annotations

import configparser
import netrc
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from zerotools.jobs.jobfile_tables.metrics import MLFLOW, WANDB, MetricsSpec

MLFLOW_URI = "MLFLOW_TRACKING_URI"
_KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
_MODE = "WANDB_MODE"
_OFFLINE = ("offline", "dryrun")
_SERVER = "https://api.wandb.ai"
_LONGEST = 1 << 20
"""The largest number of bytes that are read from a file with logins."""


def is_switched_off(name: str, environment: Mapping[str, str]) -> bool:
    """Return whether the environment variables switch the tracker `name` off completely."""
    return name == WANDB and environment.get(_MODE) == "disabled"


def offline_reasons(metrics: MetricsSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Return each tracker to which a job with this `environment` cannot log in: name -> reason.

    Reads the user's files with logins.
    """
    found = {}
    if metrics.wandb is not None and (why := _why_wandb(environment)) is not None:
        found[WANDB] = why
    if metrics.mlflow is not None and not environment.get(MLFLOW_URI):
        found[MLFLOW] = f"{MLFLOW_URI} is not set for the job"
    return found


def offline_notes(metrics: MetricsSpec, environment: Mapping[str, str]) -> list[str]:
    """Return the reasons of `offline_reasons` as sentences with advice, for the user who
    submits the job.
    """
    todo = {
        WANDB: "log in with wandb login, pass --env WANDB_API_KEY, or upload the files later with "
        "wandb sync",
        MLFLOW: f"to log to a server, set {MLFLOW_URI}",
    }
    if metrics.wandb is not None and is_switched_off(WANDB, environment):
        said = [f"metrics.{WANDB}: no step is logged there, because {_MODE}=disabled"]
    else:
        said = []
    return said + [
        f"metrics.{name}: the run is logged to files in output_dir alone, because {why}; "
        f"{todo[name]}"
        for name, why in offline_reasons(metrics, environment).items()
        if not is_switched_off(name, environment)
    ]


def _why_wandb(environment: Mapping[str, str]) -> str | None:
    settings = _settings(environment)
    mode = environment.get(_MODE) or settings.get("mode")
    if mode in _OFFLINE:
        return f"wandb's mode is {mode}"
    if any(environment.get(name) for name in _KEYS) or settings.get("api_key"):
        return None
    server = environment.get("WANDB_BASE_URL") or settings.get("base_url") or _SERVER
    host = urlsplit(server).netloc or server
    files = _netrc_files(environment)
    names = {host, host.removeprefix("api.")}  # a server may be reached by both names
    if any(_has_login(file, names) for file in files):
        return None
    return f"WANDB_API_KEY is not set for the job, and {files[0]} has no login for {host}"


def _netrc_files(environment: Mapping[str, str]) -> list[Path]:
    if named := environment.get("NETRC"):
        return [_at_home(named, environment)]
    return [_at_home("~/.netrc", environment), _at_home("~/_netrc", environment)]


def _at_home(path: str, environment: Mapping[str, str]) -> Path:
    """Return `path` with `~` replaced by the job's HOME."""
    if path.startswith("~/"):
        return Path(environment.get("HOME") or "/") / path[2:]
    return Path(path)


def _has_login(file: Path, hosts: set[str]) -> bool:
    """Return whether the login file `file` has a login for one of the hosts.

    A file that cannot be read counts as a file without a login, as in wandb.
    """
    try:
        if not file.is_file() or file.stat().st_size > _LONGEST:
            return False
        known = netrc.netrc(str(file))
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return False
    return any(host in known.hosts and known.hosts[host][2] for host in hosts)


def _settings(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings that commands of wandb have saved in a file."""
    directory = _at_home(environment.get("WANDB_CONFIG_DIR") or "~/.config/wandb", environment)
    parser = configparser.ConfigParser(interpolation=None)
    try:
        file = directory / "settings"
        if file.is_file() and file.stat().st_size <= _LONGEST:
            parser.read_string(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    return dict(parser["default"]) if parser.has_section("default") else {}
