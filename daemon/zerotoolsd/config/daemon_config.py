"""Reads `zerotoolsd.toml`, the settings of the daemon, and checks its values."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.bind import build_dataclass, format_value
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.priority_range import why_not_priority
from zerotoolsd.config.config_tables import (
    ApiConfig,
    DataCacheConfig,
    ElasticConfig,
    GpusConfig,
    HistoryConfig,
    LaunchConfig,
    LimitsConfig,
    PreemptionConfig,
    PressureConfig,
    PriorityConfig,
    RetentionConfig,
    RetryConfig,
    SharesConfig,
    StopConfig,
    WarmStartConfig,
    WatchConfig,
    WebConfig,
    wrong_history,
    wrong_warm_start,
    wrong_web,
)
from zerotoolsd.config.notify_config import NotifyConfig, wrong_notify
from zerotoolsd.config.users_config import UsersConfig, wrong_users


@dataclass(frozen=True, kw_only=True)
class Config:
    """All tables of `zerotoolsd.toml`."""

    limits: LimitsConfig = key("Limits on the use of the machine by jobs.", factory=LimitsConfig)
    gpus: GpusConfig = key("How GPUs are shared.", factory=GpusConfig)
    shares: SharesConfig = key("Fair share among users.", factory=SharesConfig)
    launch: LaunchConfig = key("Who starts the processes of a job.", factory=LaunchConfig)
    stop: StopConfig = key("How attempts end.", factory=StopConfig)
    retry: RetryConfig = key(
        "How long a crashed job waits before its restart.", factory=RetryConfig
    )
    watch: WatchConfig = key("When a job is shown as making no progress.", factory=WatchConfig)
    data_cache: DataCacheConfig = key("The cache of tokenised data.", factory=DataCacheConfig)
    users: UsersConfig = key("The users that may submit jobs.", factory=UsersConfig)
    api: ApiConfig = key("Clients that connect by TCP.", factory=ApiConfig)
    web: WebConfig = key("The page for browsers.", factory=WebConfig)
    priority: PriorityConfig = key(
        "Which priorities users may give to their jobs.", factory=PriorityConfig
    )
    elastic: ElasticConfig = key("When running elastic jobs take more GPUs.", factory=ElasticConfig)
    preemption: PreemptionConfig = key(
        "Preemption by jobs of higher priority.", factory=PreemptionConfig
    )
    notify: NotifyConfig = key("The receivers of notifications.", factory=NotifyConfig)
    retention: RetentionConfig = key(
        "Automatic removal of old records and logs.", factory=RetentionConfig
    )
    warm_start: WarmStartConfig = key(
        "Processes with torch imported, which start jobs faster.", factory=WarmStartConfig
    )
    pressure: PressureConfig = key("Actions before memory runs out.", factory=PressureConfig)
    history: HistoryConfig = key("The history of the machine.", factory=HistoryConfig)


def load_config(path: Path | None) -> Config:
    """Return the configuration in the file `path`; None: the defaults. Raises BadRequest."""
    if path is None:
        return Config()
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is not valid TOML: {error}") from None
    problems: list[str] = []
    config: Config | None = build_dataclass(Config, tree, "", problems)
    if config is not None:
        problems += [*_wrong_spans(config.retention), *_wrong_sizes(config)]
        problems += wrong_notify(config.notify)
        problems += wrong_users(config.users)
        problems += wrong_warm_start(config.warm_start)
        problems += wrong_history(config.history)
        problems += wrong_web(config.web)
        problems += _wrong_classes(config.priority)
        problems += _wrong_shares(config.shares)
        problems += _wrong_gpus(config.gpus)
    if config is None or problems:
        raise BadRequest(f"{path}: {'; '.join(problems)}")
    return config


def _wrong_gpus(gpus: GpusConfig) -> Iterator[str]:
    for name in ("exclude", "prefer"):
        for entry in getattr(gpus, name):
            is_index = isinstance(entry, int) and entry >= 0
            if not is_index and not (isinstance(entry, str) and entry.strip()):
                yield (
                    f"gpus.{name}: {format_value(entry)} names no GPU; give an index, a UUID or "
                    "the name of a model, as nvidia-smi -L shows them"
                )


def _wrong_shares(shares: SharesConfig) -> Iterator[str]:
    try:
        if seconds_of(shares.half_life) < SHORTEST_HALF_LIFE:
            yield f"shares.half_life = {format_value(shares.half_life)}: must be at least 1h"
    except ValueError as error:
        yield f"shares.half_life = {format_value(shares.half_life)}: {error}"
    for name, weight in shares.weights.items():
        if not 0 < weight < math.inf:
            yield f"shares.weights.{format_value(name, bare=True)} = {weight}: must be above 0"


SHORTEST_HALF_LIFE = 3600.0
"""The shortest half-life of shares, in seconds: the use of GPUs is recorded per hour."""


def _wrong_classes(priority: PriorityConfig) -> Iterator[str]:
    for name, bounds in priority.classes.items():
        where = f"priority.classes.{format_value(name, bare=True)} = {format_value(bounds)}"
        if len(bounds) != 2 or bounds[0] > bounds[1]:
            yield f"{where}: must be the lowest and the highest priority, such as [-10, 5]"
        elif why := next(filter(None, map(why_not_priority, bounds)), None):
            yield f"{where}: {why}"


def _wrong_sizes(config: Config) -> Iterator[str]:
    sizes = {
        "limits.job_memory": config.limits.job_memory,
        "limits.host_memory": config.limits.host_memory,
        "gpus.context_memory": config.gpus.context_memory,
    }
    for name, value in sizes.items():
        try:
            if value is not None:
                bytes_of(value)
        except ValueError as error:
            yield f"{name} = {format_value(value)}: {error}"


def _wrong_spans(retention: RetentionConfig) -> Iterator[str]:
    for item in fields(retention):
        value = getattr(retention, item.name)
        try:
            if value is not None:
                seconds_of(value)
        except ValueError as error:
            yield f"retention.{item.name} = {format_value(value)}: {error}"
