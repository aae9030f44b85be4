"""What can become of a request on its way to a store and back: values, carried out by `faults`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Refuse:
    """An answer in the store's place. The request does not reach the store."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wait:
    """Nothing at all for so many seconds, and then what the store answers."""

    seconds: float


@dataclass(frozen=True)
class Trickle:
    """The body in pieces of so many bytes, with a pause of so many seconds before each."""

    piece_bytes: int
    pause_seconds: float


@dataclass(frozen=True)
class ResetAfter:
    """The connection is reset when so many bytes of the body were sent. The store has done it."""

    body_bytes: int


@dataclass(frozen=True)
class Truncate:
    """The connection is closed in order when so many bytes of the body were sent, which is fewer
    than Content-Length says."""

    body_bytes: int


@dataclass(frozen=True)
class Garble:
    """The byte at an offset of the body is another one. Nothing else tells of it."""

    offset: int


@dataclass(frozen=True)
class LoseReply:
    """The store does it and answers, but the connection is reset before the first byte of that."""


@dataclass(frozen=True)
class ForgetWrites:
    """A listing without what was written last through the proxy: `writes` objects of those that
    came into being by put, copy or complete.

    Objects that were overwritten are left out, too; those that were deleted do not come back.
    """

    writes: int = 1


@dataclass(frozen=True)
class Call:
    """`function` is called, before the request reaches the store or after the store has answered.
    Then all goes on as if nothing were."""

    function: Callable[[], object]
    after: bool = False


@dataclass(frozen=True)
class EndHere:
    """As `Call`, but the client gets no answer, and before means that the store never sees it.

    For `function` that kills the client: with `after` false its request was lost on the way, with
    true the store has done what it asked.
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
    """An error as S3, and the XML API of GCS, answer it."""
    text = f"<Error><Code>{code}</Code><Message>{message or code}</Message></Error>"
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
    return Refuse(status, body, {"Content-Type": "application/xml", "x-amz-request-id": "0"})


def azure_error(status: int, code: str, message: str = "") -> Refuse:
    """An error as Azure answers it."""
    told = s3_error(status, code, message)
    return Refuse(status, told.body, {"Content-Type": "application/xml", "x-ms-error-code": code})


INTERNAL_ERROR = s3_error(500, "InternalError", "We encountered an internal error.")
SLOW_DOWN = s3_error(503, "SlowDown", "Please reduce your request rate.")
ACCESS_DENIED = s3_error(403, "AccessDenied", "Access Denied")
NO_SUCH_BUCKET = s3_error(404, "NoSuchBucket", "The specified bucket does not exist")
EXPIRED_TOKEN = s3_error(400, "ExpiredToken", "The provided token has expired.")
