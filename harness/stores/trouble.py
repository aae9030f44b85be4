"""The faults that can happen to a request on its way to a store and back; `faults` causes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Refuse:
    """The proxy answers instead of the store. The store does not get the request."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wait:
    """The store's answer arrives `seconds` later."""

    seconds: float


@dataclass(frozen=True)
class Trickle:
    """The body arrives in pieces of `piece_bytes` bytes, with a pause of `pause_seconds` before
    each piece.
    """

    piece_bytes: int
    pause_seconds: float


@dataclass(frozen=True)
class ResetAfter:
    """The connection is reset after `body_bytes` bytes of the body. The store has done the
    request.
    """

    body_bytes: int


@dataclass(frozen=True)
class Truncate:
    """The connection is closed without an error after `body_bytes` bytes of the body.

    The header Content-Length names more bytes.
    """

    body_bytes: int


@dataclass(frozen=True)
class Garble:
    """The byte at position `offset` of the body is changed, without any other sign of a fault."""

    offset: int


@dataclass(frozen=True)
class LoseReply:
    """The store does the request, but the connection is reset before the first byte of the
    answer.
    """


@dataclass(frozen=True)
class ForgetWrites:
    """A listing lacks the last `writes` objects that were written through the proxy.

    Objects are written by put, copy or complete. Overwritten objects are also left out. Deleted
    objects are not shown again.
    """

    writes: int = 1


@dataclass(frozen=True)
class Call:
    """`function` is called before the store gets the request, or with `after`, after it has
    answered.

    Then the request continues without a fault.
    """

    function: Callable[[], object]
    after: bool = False


@dataclass(frozen=True)
class EndHere:
    """Like `Call`, but the client gets no answer. Without `after`, the store does not get the
    request.

    It is meant for a `function` that kills the client: before the store has done the request, or
    with `after`, afterwards.
    """

    function: Callable[[], object]
    after: bool = False


Trouble = (
    Refuse
    | Wait
    | Trickle
    | ResetAfter
    | Truncate
    | Garble
    | LoseReply
    | ForgetWrites
    | Call
    | EndHere
)


def s3_error(status: int, code: str, message: str = "") -> Refuse:
    """Return an error answer in the format of S3 and of the XML API of GCS."""
    text = f"<Error><Code>{code}</Code><Message>{message or code}</Message></Error>"
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
    return Refuse(status, body, {"Content-Type": "application/xml", "x-amz-request-id": "0"})


def azure_error(status: int, code: str, message: str = "") -> Refuse:
    """Return an error answer in the format of Azure."""
    told = s3_error(status, code, message)
    return Refuse(status, told.body, {"Content-Type": "application/xml", "x-ms-error-code": code})


INTERNAL_ERROR = s3_error(500, "InternalError", "We encountered an internal error.")
SLOW_DOWN = s3_error(503, "SlowDown", "Please reduce your request rate.")
ACCESS_DENIED = s3_error(403, "AccessDenied", "Access Denied")
NO_SUCH_BUCKET = s3_error(404, "NoSuchBucket", "The specified bucket does not exist")
EXPIRED_TOKEN = s3_error(400, "ExpiredToken", "The provided token has expired.")
