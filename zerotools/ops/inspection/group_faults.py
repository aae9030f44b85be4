"""Groups the faults of a checkpoint: tensors that are incomplete because of a faulty file are one
sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from zerotools.core.counts_and_sizes import count_text

MOST_NAMES = 8


class CheckpointFault(Protocol):
    """A fault of a file, or of a tensor."""

    @property
    def message(self) -> str: ...
    @property
    def file(self) -> str | None: ...
    @property
    def tensor(self) -> object | None: ...


F = TypeVar("F", bound=CheckpointFault)


def grouped_faults(faults: Sequence[F]) -> tuple[list[F], str | None]:
    """Return the faults that are not the consequence of another one, and a sentence about the
    tensors with such consequences; None if there are none.

    The message of a consequence ends with its cause in parentheses: the message of a faulty file.
    """
    causes = {fault.message for fault in faults if fault.file is not None}
    lengths = {len(cause) for cause in causes}

    def is_consequence(fault: F) -> bool:
        if fault.tensor is None or fault.file is not None or not fault.message.endswith(")"):
            return False
        return any(fault.message[-length - 1 : -1] in causes for length in lengths)

    own, names = list[F](), list[str]()
    for fault in faults:
        if is_consequence(fault):
            names.append(str(fault.tensor))
        else:
            own.append(fault)
    if not names:
        return own, None
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    tensors = count_text(len(names), "tensor")
    return own, f"{tensors} incomplete because of that: {', '.join(names[:MOST_NAMES])}{more}"
