"""Check requests to the server. A request needs the token, or a signature with the key pair. Token
and key pair are made when the server starts.

A signature has the form of AWS's version 4 (SigV4): an HMAC over the method, the path, the query,
chosen headers and the time, with a key that is derived from the secret, the day, the region and the
service. https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"
CLOCK_SECONDS = 15 * 60
"""The largest allowed difference between the clocks of client and server, in seconds, as in S3."""
_EMPTY = hashlib.sha256(b"").hexdigest()
_UNSIGNED = "UNSIGNED-PAYLOAD"
_CREDENTIAL = re.compile(r"([^/]{1,128})/(\d{8})/([\w-]{1,40})/s3/aws4_request")
_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class Credentials:
    """The secret token and key pair that give a client access to the server. `picture` is a
    separate secret for the picture of the checkpoint only, because a browser keeps it in its
    history."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    key_id: str = field(default_factory=lambda: f"ZT{secrets.token_hex(9).upper()}")
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(30), repr=False)
    picture: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def has_token(self, authorization: str | None) -> bool:
        """Return whether the header `authorization` is `Bearer` with the token."""
        kind, _, given = (authorization or "").strip().partition(" ")
        if kind.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), self.token.encode())

    def opens_picture(self, given: str | None) -> bool:
        """Return whether `given` is the secret for the picture."""
        return hmac.compare_digest((given or "").encode(), self.picture.encode())


@dataclass(frozen=True)
class SignedRequest:
    """A request as it was sent.

    Attributes:
        path: the path, percent-encoded.
        query: decoded pairs (name, value).
        headers: the headers, keyed by their names in lower case.
    """

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]


def signature_refusal(
    request: SignedRequest, credentials: Credentials, now: datetime
) -> str | None:
    """Return the S3 error code for a request with a wrong signature; None if the signature is
    correct."""
    given = request.headers.get("authorization")
    if given is None:
        return "AccessDenied"
    kind, _, rest = given.partition(" ")
    pairs = (each.partition("=") for each in rest.split(","))
    parts = {name.strip(): value.strip() for name, _, value in pairs}
    scope = _CREDENTIAL.fullmatch(parts.get("Credential", ""))
    signed = parts.get("SignedHeaders", "").split(";")
    if kind != ALGORITHM or scope is None or not {"host", "x-amz-date"} <= set(signed):
        return "AuthorizationHeaderMalformed"
    key_id, day, region = scope.groups()
    stamp = request.headers.get("x-amz-date", "")
    try:
        at = datetime.strptime(stamp, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return "AccessDenied"
    if not stamp.startswith(day) or abs((now - at).total_seconds()) > CLOCK_SECONDS:
        return "RequestTimeTooSkewed"
    if not hmac.compare_digest(key_id.encode(), credentials.key_id.encode()):
        return "InvalidAccessKeyId"
    is_read = request.method in ("GET", "HEAD")  # and has no body
    if is_read and request.headers.get("x-amz-content-sha256", _EMPTY) not in (_EMPTY, _UNSIGNED):
        return "XAmzContentSHA256Mismatch"
    wanted = request_signature(request, credentials.secret, signed, region)
    if not hmac.compare_digest(wanted.encode(), parts.get("Signature", "").encode()):
        return "SignatureDoesNotMatch"
    return None


def request_signature(
    request: SignedRequest, secret: str, signed: Sequence[str], region: str
) -> str:
    """Return the signature of a request over the headers `signed`, in hexadecimal."""
    headers = request.headers
    stamp = headers["x-amz-date"]
    query = "&".join(
        f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}"
        for name, value in sorted(request.query)
    )
    lines = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in signed)
    payload = headers.get("x-amz-content-sha256", _EMPTY)
    canonical = "\n".join((request.method, request.path, query, lines, ";".join(signed), payload))
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for word in (stamp[:8], region, "s3", "aws4_request"):
        key = _hmac(key, word)
    return _hmac(key, "\n".join((ALGORITHM, stamp, scope, digest))).hex()


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
