"""Read DeepSpeed's section `zero_optimization`: the stage, and offload in its old and new
spelling. Keys that have no effect at this stage are reported.
"""

from __future__ import annotations

from collections.abc import Mapping

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.reading.check_deepspeed_keys import AUTO, ConfigValue
from zerotools.jobs.imports.reading.config_reader import ConfigReading
from zerotools.jobs.imports.reading.import_report import KeyOutcome
from zerotools.jobs.imports.reading.look_up_job_keys import deepspeed_names
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS

STAGE = "zero_optimization.stage"
JOB_STAGE = "zero.stage"
DEVICES = {"none": "none", "cpu": "cpu", "nvme": "disk"}
"""An offload device: its name in DeepSpeed -> its name in the job file."""

_PLURAL = "zero_optimization.cpu_offload_params"
_OLD = (
    ("zero_optimization.cpu_offload", "offload.optimizer"),
    ("zero_optimization.cpu_offload_param", "offload.params"),
    (_PLURAL, "offload.params"),
)
_RATIO = "zero_optimization.offload_optimizer.ratio"
_TILES = "zero_optimization.sub_group_size"
_PATH = "offload.path"
_PATH_MEANS = "for the fp32 weights and the optimizer state, in memory-mapped files"


def read_zero(reading: ConfigReading) -> None:
    """Translate stage and offload to keys of the job file.

    Refuse settings that need another stage. The message names the file positions of the setting and
    of the stage.
    """
    stage, place = _stage(reading)
    _offload(reading, stage, place)
    _mics(reading, stage, place)
    _ratio(reading, stage, place)
    tiles = reading.pop(_TILES)
    if tiles is not None and stage is not None and stage < 3:
        reading.row(
            KeyOutcome.IGNORED,
            tiles,
            None,
            f"has an effect only at stage 3, and the stage is {stage}",
        )
    elif tiles is not None:
        reading.remaining[_TILES] = tiles
    for name, given in reading.remaining.items():
        if KEYS[name].stage3 and stage in (0, 1, 2) and given.value not in (None, False):
            reading.findings.wrong.append(
                f"{given.label} = {format_value(given.value)}: has an effect only at stage 3, but "
                f"{place} is {stage}; remove the key, or train at stage 3"
            )


def _stage(reading: ConfigReading) -> tuple[int | None, str]:
    """Return the ZeRO stage and its position in the config. The stage is None if its value is
    invalid.
    """
    whole = reading.pop("zero_optimization")
    if whole is not None:  # the spelling of DeepSpeed before 0.3
        stage = 1 if whole.value else 0
        reading.map(whole, JOB_STAGE, stage, "an old spelling: true is stage 1, false is stage 0")
        return stage, whole.label
    if reading.peek(STAGE) == AUTO:
        known = reading.current_value(JOB_STAGE)
        assert known is not None
        reading.resolve(STAGE, known.value, known.origin)
    given = reading.pop(STAGE)
    if given is None:
        reading.default(STAGE, JOB_STAGE, 0)
        claim = reading.claims.of(JOB_STAGE)
        assert claim is not None
        return claim.value, claim.place
    if given.value is None or given.value > 3:
        what = f"{given.label} = {format_value(given.value)}: the stages are 0, 1, 2 and 3"
        reading.findings.wrong.append(what)
        return None, given.label
    reading.map(given, JOB_STAGE, given.value)
    return given.value, given.label


def _offload(reading: ConfigReading, stage: int | None, place: str) -> None:
    for name, key in _OLD:
        given = reading.pop(name)
        new = deepspeed_names("offload")[key].removesuffix(".device")
        if given is not None and any(each.startswith(new) for each in reading.remaining):
            reading.findings.wrong.append(
                f"{given.label} = {format_value(given.value)}: {new} has replaced it, and "
                "DeepSpeed does not start if both are given; remove the older key"
            )
        if given is not None:
            device = "cpu" if given.value else "none"
            _map_offload(reading, given, key, device, stage, place)
            if name == _PLURAL:  # only DeepSpeed's documentation has this key
                reading.settled[name] = None
                reading.settled[name.removesuffix("s")] = given.value
    names = dict(deepspeed_names("offload"))
    devices = {key: names.pop(key) for key in ("offload.optimizer", "offload.params")}
    for key, name in devices.items():
        given = reading.pop(name)
        if given is None:
            continue
        device = "none" if given.value in (None, AUTO) else given.value.lower()
        if device in DEVICES:
            _map_offload(reading, given, key, DEVICES[device], stage, place)
            if key == "offload.optimizer":
                _details(reading, device, names)
        else:
            what = f'{given.label} = {format_value(given.value)}: must be "none", "cpu" or "nvme"'
            reading.findings.wrong.append(what)


def _mics(reading: ConfigReading, stage: int | None, place: str) -> None:
    """Read the settings for MiCS: each group of ranks shares one copy of the model, as in
    torch's HSDP.
    """
    key = "zero.shard_size"
    given = reading.pop(deepspeed_names("zero")[key])
    if given is None:
        return
    size = given.value
    if size in (None, AUTO) or size < 0:
        reading.row(KeyOutcome.IGNORED, given, None, "all ranks share one copy of the model")
    elif not size or size != int(size):
        what = (
            f"{given.label} = {format_value(size)}: must be a number of ranks, or -1 for all ranks"
        )
        reading.findings.wrong.append(what)
    elif stage is not None and stage < 3:
        reading.findings.wrong.append(
            f"{given.label} = {format_value(size)}: MiCS needs stage 3, but {place} is {stage}; "
            "remove the key, or train at stage 3"
        )
    elif reading.engine == "deepspeed":
        reading.row(KeyOutcome.PASSED, given)
    else:
        reading.map(
            given, key, int(size), "the number of ranks that share one copy of the model (HSDP)"
        )


def _ratio(reading: ConfigReading, stage: int | None, place: str) -> None:
    """Read the fraction of the optimizer state that is offloaded.

    DeepSpeed accepts a fraction below 1 only at stage 3.
    """
    given = reading.pop(_RATIO)
    if given is None:
        return
    part = isinstance(given.value, (int, float)) and given.value < 1
    if part and stage is not None and stage < 3:
        reading.findings.wrong.append(
            f"{given.label} = {format_value(given.value)}: DeepSpeed offloads a part of the "
            f"optimizer only at stage 3, but {place} is {stage}; remove the key, or train at "
            "stage 3"
        )
    elif reading.engine == "deepspeed":
        reading.remaining[_RATIO] = given
    else:
        why = "the engine torch always offloads the whole optimizer"
        reading.row(KeyOutcome.IGNORED, given, None, why)


def _details(reading: ConfigReading, device: str, names: Mapping[str, str]) -> None:
    """Read the settings of the optimizer's offload to `device`: `none`, `cpu` or `nvme`.

    The path is used only for offload to NVMe. `names` maps a key of the job to the DeepSpeed key
    with the same meaning.
    """
    for key, name in names.items():
        given = reading.pop(name)
        if given is None:
            continue
        value = KEYS[name].default if given.value in (None, AUTO) else given.value
        if key == _PATH and (device != "nvme" or value is None):
            reading.row(KeyOutcome.IGNORED, given, None, "the config offloads no data to NVMe")
        elif device == "none":
            reading.row(KeyOutcome.IGNORED, given, None, "nothing is offloaded")
        else:
            reading.map(given, key, value, _PATH_MEANS if key == _PATH else "")


def _map_offload(
    reading: ConfigReading, given: ConfigValue, key: str, device: str, stage: int | None, place: str
) -> None:
    lowest = 3 if key == "offload.params" or device == "disk" else 1
    if device != "none" and stage is not None and stage < lowest:
        needed = "stage 3" if lowest == 3 else f"stage {lowest} or higher"
        what = (
            "parameter offload"
            if key == "offload.params"
            else f"offload to {format_value(given.value)}"
        )
        reading.findings.wrong.append(
            f"{given.label} = {format_value(given.value)}: {what} needs {needed}, but "
            f"{place} is {stage}; remove the key, or train at stage 3"
        )
    elif device == "none" and not reading.is_stated(key):
        reading.row(KeyOutcome.IGNORED, given, None, "nothing is offloaded")
    else:
        reading.map(given, key, device)
