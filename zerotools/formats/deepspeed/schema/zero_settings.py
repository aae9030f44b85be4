"""The ZeRO settings of the resuming run, from options or from a DeepSpeed configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.formats.deepspeed.schema.ds_config import (
    DEFAULT_SUB_GROUP_SIZE,
    ROUND_ROBIN,
    STAGE,
    SUB_GROUP_SIZE,
    number_of,
    zero_optimization,
)

_STAGES = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class ZeroSettings:
    """The settings that the user requests for the output; None means: as in the source.

    `ds_config` is the configuration of the run that will resume. If it is set, it determines all
    settings; DeepSpeed's default is used for each key that it lacks.
    """

    stage: int | None = None
    sub_group_size: int | None = None
    round_robin: bool | None = None
    ds_config: Mapping[str, Any] | None = None

    def settled(self) -> ZeroSettings:
        """Return the settings, with the values from `ds_config` if the user passed a configuration.

        Raises:
            BadRequest: DeepSpeed has no such value, or an option contradicts `ds_config`.
        """
        if self.stage is not None and self.stage not in _STAGES:
            raise BadRequest(
                f"--stage is {self.stage}, but must be 1, 2 or 3, the stages with partitions; "
                "choose one of these"
            )
        if self.sub_group_size is not None and self.sub_group_size < 1:
            raise BadRequest(
                f"--sub-group-size is {self.sub_group_size}, but must be at least 1; choose a "
                "larger size"
            )
        if self.ds_config is None:
            return self
        zero = zero_optimization(self.ds_config)
        stage = number_of(zero, STAGE, 0)
        if stage not in _STAGES:
            raise BadRequest(
                f"the configuration has ZeRO stage {stage}, which does not partition checkpoints; "
                "zerotools writes stages 1, 2 and 3"
            )
        size = number_of(zero, SUB_GROUP_SIZE, DEFAULT_SUB_GROUP_SIZE)
        round_robin = zero.get(ROUND_ROBIN) is True
        _agree("--stage", STAGE, self.stage, stage)
        _agree("--sub-group-size", SUB_GROUP_SIZE, self.sub_group_size, size)
        _agree("--round-robin", ROUND_ROBIN, self.round_robin, round_robin)
        return ZeroSettings(
            stage,
            size if stage == 3 else None,
            round_robin if stage != 3 else None,
            self.ds_config,
        )


AS_IS = ZeroSettings()


def _agree(flag: str, key: str, asked: int | None, configured: int) -> None:
    if asked is not None and asked != configured:
        raise BadRequest(
            f"{flag} is {_word(asked)}, but the configuration of the resuming run has "
            f"{_word(configured)}: leave {flag} out, or change zero_optimization.{key} in the "
            "file of --ds-config"
        )


def _word(value: int) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
