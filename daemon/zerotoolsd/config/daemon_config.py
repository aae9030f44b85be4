"""`zerotoolsd.toml`: the settings of the machine's owner. Every key has a default."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from zerotools.core.counts import bytes_of
from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.bind import build, show
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.priorities import LEAST_PRIORITY, MOST_PRIORITY, why_not_priority
from zerotools.jobs.tables.notify import wrong_sending
from zerotools.sensors.cores import usable_cores
from zerotools.sensors.gpu_memory_use import USUAL_WORDS, usual_foreign_bytes
from zerotools.sensors.snapshot import Gpu
from zerotoolsd.config.elastic_config import ElasticConfig
from zerotoolsd.config.history_config import HistoryConfig, wrong_history
from zerotoolsd.config.notify_config import NotifyConfig
from zerotoolsd.config.preemption_config import PreemptionConfig
from zerotoolsd.config.pressure_config import PressureConfig
from zerotoolsd.config.users_config import UsersConfig, wrong_users
from zerotoolsd.config.warm_start_config import WarmStartConfig, wrong_warm_start
from zerotoolsd.config.web_config import WebConfig, wrong_web


@dataclass(frozen=True, kw_only=True)
class LimitsConfig:
    """`[limits]`: how much of the machine the jobs may have."""

    cpu_ranks: int = key(
        'Ranks of all running `device = "cpu"` jobs together.',
        factory=usable_cores,
        shown="the cores that the daemon may use",
        minimum=0,
    )
    foreign_memory_bytes: int | None = key(
        "A GPU is not used while other programs hold more memory on it than this, or while a "
        "finished job has left more than this. Programs that only draw on a screen, such as a "
        "desktop, do not count.",
        default=None,
        shown=USUAL_WORDS,
        minimum=0,
    )
    use_unmeasured_gpus: bool = key(
        "Also use GPUs without a report of their memory or processes by the driver "
        "(integrated ones such as GB10, vGPU, WSL). The daemon cannot see whether other "
        "programs use them.",
        default=False,
    )
    snapshot_age_seconds: float = key(
        "No job starts on GPUs that were last seen longer ago than this.", default=30.0, above=0
    )
    cgroups: bool = key(
        "Put the processes of each attempt into a control group, which none can leave, if the "
        "daemon may make one. Jobs with `[limits]` always have one.",
        default=True,
    )
    job_memory: int | str | None = key(
        "Host memory of a job that sets no `limits.memory`, and the most that one may set: bytes, "
        'or text such as `"64GiB"`. Not set: as much as there is.',
        default=None,
    )
    host_memory: int | str | None = key(
        "Host memory that running jobs may declare together (`memory.host`): bytes, or text such "
        'as `"400GiB"`. Not set: nine tenths of the memory of the machine.',
        default=None,
    )
    job_processes: int | None = key(
        "Processes and threads of a job that sets no `limits.processes`, and the most that one may "
        "set. Not set: no limit.",
        default=None,
        minimum=1,
    )
    log_bytes: int = key(
        "Bytes of one rank's log that are kept from its start; the last 64 KiB are kept too.",
        default=64 * 2**20,
        minimum=2**16,
    )

    def foreign_on(self, gpu: Gpu) -> int:
        """Return the bytes of this GPU that programs other than its jobs may hold."""
        usual = usual_foreign_bytes(gpu)
        return usual if self.foreign_memory_bytes is None else self.foreign_memory_bytes


@dataclass(frozen=True, kw_only=True)
class GpusConfig:
    """`[gpus]`: how jobs share the GPUs, and this daemon with others."""

    context_memory: int | str = key(
        "Memory of a GPU that is set aside for the CUDA context of each job that declares "
        '`memory.per_gpu`: bytes, or text such as `"512MiB"`.',
        default="512MiB",
    )
    end_over_declared: bool = key(
        "Cancel jobs that use more memory of a GPU than they declared; false: say so in `queue` "
        "and in an event.",
        default=False,
    )
    idle_seconds: float = key(
        "A job is shown as idle in `queue` and in an event if the driver reported its GPUs as "
        "idle for this long; 0: never.",
        default=1800.0,
        minimum=0,
    )
    stop_idle: bool = key(
        "Also ask such a job to save and stop for good; false: it continues.", default=False
    )
    exclude: tuple[int | str, ...] = key(
        "GPUs that jobs do not use: indexes as `nvidia-smi` shows them, UUIDs, or names of a model "
        '(`[0, "NVIDIA T400"]`). A job that already runs there continues.',
        default=(),
    )
    prefer: tuple[int | str, ...] = key(
        "GPUs that jobs get first, in this order, with entries as in `exclude`. A job that names "
        "its GPUs gets those.",
        default=(),
    )
    locks: str = key(
        "The directory of the GPUs' locks, which keep the daemons of several users apart: "
        "owned by root, mode 1777. Without it, only NVML shows the GPUs that others use, and "
        '`zerotools doctor` warns. `""`: no locks.',
        default="/run/zerotools/gpus",
    )


@dataclass(frozen=True, kw_only=True)
class SharesConfig:
    """`[shares]`: the order of several users with jobs that wait for GPUs."""

    fair: bool = key(
        "Of jobs of one priority, those of the user first who has used least of the GPUs for their "
        "weight; false: the oldest first, whosever it is.",
        default=True,
    )
    half_life: int | str = key(
        'Used GPU time counts half after this time: seconds, or text such as `"7d"`.', default="7d"
    )
    weights: Mapping[str, float] = key(
        'The weight of the share of a user (`"alice" = 2.0`, or the uid `"1000"`), of each member '
        'of a group (`"@lab" = 1.5`), or of all others (`"*" = 1.0`, which is the default). The '
        "entry of a user counts before those of groups.",
        factory=dict,
    )


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """`[launch]`: who starts the processes of a job."""

    by: str = key(
        '`"systemd"`: each attempt runs in a separate transient unit, without the limits of '
        'the daemon\'s unit. `"child"`: it is a child of the daemon and inherits them. '
        '`"auto"`: the value of the environment variable `ZEROTOOLS_LAUNCH`, which the system '
        "unit sets; else systemd if it started the daemon, and a child if that fails.",
        default="auto",
        allowed=("auto", "systemd", "child"),
    )


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """`[stop]`: how attempts end."""

    grace_seconds: float = key(
        "The time that a stopping job has to save before it is killed.",
        default=120.0,
        minimum=0,
    )
    straggler_seconds: float = key(
        "The time that the other ranks have to finish when one rank is done, and that a "
        "program has to end after `worker.finished()`.",
        default=600.0,
        minimum=0,
    )
    kill_seconds: float = key(
        "If a process still runs this long after SIGKILL, the daemon names it, and the GPUs "
        "of its job stay reserved until it ends.",
        default=30.0,
        above=0,
    )


@dataclass(frozen=True, kw_only=True)
class RetryConfig:
    """`[retry]`: how long a crashed job waits before it is started again."""

    first_seconds: float = key("The wait before the first restart.", default=1.0, minimum=0)
    factor: float = key("Each wait is this many times the one before.", default=4.0, minimum=1)
    most_seconds: float = key("The longest wait.", default=300.0, minimum=0)
    fence_seconds: float = key(
        "A GPU with an XID of a hardware fault is not used for this long, or until the "
        "machine is restarted.",
        default=3600.0,
        minimum=0,
    )
    at_once: int = key(
        "The number of restarted jobs that may load at the same time; others wait.",
        default=4,
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """`[watch]`: when a running job is shown as one that makes no progress."""

    no_progress_seconds: float = key(
        "A running job is shown as making no progress when its ranks have not written to their "
        "logs, reported anything or taken more memory for this long. 0: never.",
        default=300.0,
        minimum=0,
    )
    end_stalled: bool = key(
        "End stalled attempts, by the limits of `[stall]` in the job file; false: write the stacks "
        "of their ranks to the log and show them as stalled.",
        default=True,
    )


@dataclass(frozen=True, kw_only=True)
class RetentionConfig:
    """`[retention]`: automatic removal of old data; none until a key is set.

    Each value is seconds, or text such as `"30d"`. Checkpoints and exports are never removed in
    this way, nor is anything that an unfinished job names.
    """

    records: int | str | None = key(
        "Jobs that ended longer ago than this are removed, record and logs, as `zerotools clean` "
        'does: seconds, or text such as `"90d"`. Not set: none are removed.',
        default=None,
    )
    logs: int | str | None = key(
        "The logs and the progress of jobs that ended longer ago than this are removed; their "
        "records stay. Not set: none are removed.",
        default=None,
    )
    events: int | str | None = key(
        "Events older than this are removed. Not set: none are removed.", default=None
    )


@dataclass(frozen=True, kw_only=True)
class DataCacheConfig:
    """`[data_cache]`: tokenised data that restarts and other jobs take again."""

    directory: str | None = key(
        "Its directory; default: `data-cache` in the state directory. It may be removed at any "
        "time.",
        default=None,
        path=True,
    )
    bytes: int = key(
        "Its limit: the entries used longest ago are removed. 0: no cache, and "
        "each attempt tokenises its data.",
        default=64 * 2**30,
        minimum=0,
    )


@dataclass(frozen=True, kw_only=True)
class PriorityConfig:
    """`[priority]`: which priorities users may give to their jobs."""

    classes: Mapping[str, tuple[int, ...]] = key(
        'The least and the most for a user (`"alice" = [-10, 5]`, or the uid `"1000"`), a group '
        '(`"@lab" = [-10, 10]`), or all others (`"*" = [-10, 0]`). The entry of a user '
        "counts before those of groups; of several groups, the widest range counts. Without one, "
        f"and for root and the daemon's user: {LEAST_PRIORITY} to {MOST_PRIORITY}.",
        factory=dict,
    )


@dataclass(frozen=True, kw_only=True)
class ApiConfig:
    """`[api]`: clients by TCP. Without `listen` there are none."""

    listen: str | None = key(
        'An address and a port, such as `"127.0.0.1:8732"`, for clients with a token. An '
        "address that other machines can reach needs TLS.",
        default=None,
    )
    tokens: str | None = key(
        "A file of mode 0600 with one `UID TOKEN` a line; default: the credential `api-tokens` "
        "that systemd gives the service.",
        default=None,
        path=True,
    )
    tls_certificate: str | None = key(
        "The certificate, and those that signed it, in PEM.", default=None, path=True
    )
    tls_key: str | None = key("Its private key, in PEM.", default=None, path=True)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole file."""

    limits: LimitsConfig = key("Limits on the use of the machine by jobs.", factory=LimitsConfig)
    gpus: GpusConfig = key("How GPUs are shared.", factory=GpusConfig)
    shares: SharesConfig = key("Fair share among users.", factory=SharesConfig)
    launch: LaunchConfig = key("Who starts the processes of a job.", factory=LaunchConfig)
    stop: StopConfig = key("How attempts end.", factory=StopConfig)
    retry: RetryConfig = key("How long a crashed job waits.", factory=RetryConfig)
    watch: WatchConfig = key("When a job is shown as making no progress.", factory=WatchConfig)
    data_cache: DataCacheConfig = key(
        "Tokenised data that is taken again.", factory=DataCacheConfig
    )
    users: UsersConfig = key("The users that may submit jobs.", factory=UsersConfig)
    api: ApiConfig = key("Clients that come by TCP.", factory=ApiConfig)
    web: WebConfig = key("The page for browsers.", factory=WebConfig)
    priority: PriorityConfig = key(
        "Which priorities users may give to their jobs.", factory=PriorityConfig
    )
    elastic: ElasticConfig = key(
        "The times when running elastic jobs take more GPUs.", factory=ElasticConfig
    )
    preemption: PreemptionConfig = key(
        "Preemption by jobs of higher priority.", factory=PreemptionConfig
    )
    notify: NotifyConfig = key("The receivers of notifications.", factory=NotifyConfig)
    retention: RetentionConfig = key(
        "Automatic removal of old records and logs.", factory=RetentionConfig
    )
    warm_start: WarmStartConfig = key(
        "Jobs that find torch imported when they start.", factory=WarmStartConfig
    )
    pressure: PressureConfig = key("Actions before memory runs out.", factory=PressureConfig)
    history: HistoryConfig = key("The history of the machine.", factory=HistoryConfig)


def load(path: Path | None) -> Config:
    """Return the configuration in `path`; without one, the defaults. Raises BadRequest."""
    if path is None:
        return Config()
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is not valid TOML: {error}") from None
    problems: list[str] = []
    config: Config | None = build(Config, tree, "", problems)
    if config is not None:
        problems += [*_wrong_spans(config.retention), *_wrong_sizes(config)]
        problems += wrong_sending(config.notify)
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
                    f"gpus.{name}: {show(entry)} names no GPU; give an index, a UUID or the name "
                    "of a model, as nvidia-smi -L shows them"
                )


def _wrong_shares(shares: SharesConfig) -> Iterator[str]:
    try:
        if seconds_of(shares.half_life) < SHORTEST_HALF_LIFE:
            yield f"shares.half_life = {show(shares.half_life)}: must be at least 1h"
    except ValueError as error:
        yield f"shares.half_life = {show(shares.half_life)}: {error}"
    for name, weight in shares.weights.items():
        if not 0 < weight < math.inf:
            yield f"shares.weights.{show(name, bare=True)} = {weight}: must be above 0"


SHORTEST_HALF_LIFE = 3600.0
"""Use is booked by the hour."""


def _wrong_classes(priority: PriorityConfig) -> Iterator[str]:
    for name, bounds in priority.classes.items():
        where = f"priority.classes.{show(name, bare=True)} = {show(bounds)}"
        if len(bounds) != 2 or bounds[0] > bounds[1]:
            yield f"{where}: must be the least and the most, such as [-10, 5]"
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
            yield f"{name} = {show(value)}: {error}"


def _wrong_spans(retention: RetentionConfig) -> Iterator[str]:
    for item in fields(retention):
        value = getattr(retention, item.name)
        try:
            if value is not None:
                seconds_of(value)
        except ValueError as error:
            yield f"retention.{item.name} = {show(value)}: {error}"
