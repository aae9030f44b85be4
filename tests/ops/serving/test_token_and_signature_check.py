from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from zerotools.ops.serving.token_and_signature_check import (
    Credentials,
    SignedRequest,
    request_signature,
    signature_refusal,
)

# The example of AWS: "Signature Calculations for the Authorization Header", GET Object.
# https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SIGNED = ["host", "range", "x-amz-content-sha256", "x-amz-date"]
HEADERS = {
    "host": "examplebucket.s3.amazonaws.com",
    "range": "bytes=0-9",
    "x-amz-content-sha256": EMPTY,
    "x-amz-date": "20130524T000000Z",
}
EXAMPLE = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
LISTING = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
NOW = datetime(2013, 5, 24, 0, 5, tzinfo=UTC)
KEYS = Credentials(key_id="AKIAIOSFODNN7EXAMPLE", secret=SECRET)


def test_the_examples_of_aws() -> None:
    request = SignedRequest("GET", "/test.txt", [], HEADERS)
    assert request_signature(request, SECRET, SIGNED, "us-east-1") == EXAMPLE
    listing = {name: value for name, value in HEADERS.items() if name != "range"}
    asked = SignedRequest("GET", "/", [("max-keys", "2"), ("prefix", "J")], listing)
    signed = [name for name in SIGNED if name != "range"]
    assert request_signature(asked, SECRET, signed, "us-east-1") == LISTING


def request(**changes: str) -> SignedRequest:
    scope = "20130524/us-east-1/s3/aws4_request"
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={KEYS.key_id}/{scope},"
        f"SignedHeaders={';'.join(SIGNED)},Signature={EXAMPLE}"
    )
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return SignedRequest(
        "GET", "/test.txt", [], {**HEADERS, "authorization": authorization} | named
    )


def test_who_signs_rightly_is_taken() -> None:
    assert signature_refusal(request(), KEYS, NOW) is None


@pytest.mark.parametrize(
    ("asked", "keys", "now", "why"),
    [
        (request(range="bytes=0-99"), KEYS, NOW, "SignatureDoesNotMatch"),
        (replace(request(), path="/other.txt"), KEYS, NOW, "SignatureDoesNotMatch"),
        (replace(request(), method="HEAD"), KEYS, NOW, "SignatureDoesNotMatch"),
        (replace(request(), query=[("a", "b")]), KEYS, NOW, "SignatureDoesNotMatch"),
        (request(), replace(KEYS, secret="other"), NOW, "SignatureDoesNotMatch"),
        (request(), replace(KEYS, key_id="OTHER"), NOW, "InvalidAccessKeyId"),
        (request(), KEYS, NOW + timedelta(hours=1), "RequestTimeTooSkewed"),
        (request(), KEYS, NOW - timedelta(hours=1), "RequestTimeTooSkewed"),
        (request(x_amz_date="20130525T000000Z"), KEYS, NOW, "RequestTimeTooSkewed"),
        (request(x_amz_date="yesterday"), KEYS, NOW, "AccessDenied"),
        (request(authorization="AWS4-HMAC-SHA256 x"), KEYS, NOW, "AuthorizationHeaderMalformed"),
        (
            request(authorization="AWS4-HMAC-SHA256 Credential=a/20130524/r/s3/aws4_request,"
                    "SignedHeaders=range,Signature=0"),
            KEYS, NOW, "AuthorizationHeaderMalformed",
        ),
        (request(x_amz_content_sha256="0" * 64), KEYS, NOW, "XAmzContentSHA256Mismatch"),
    ],
)  # fmt: skip
def test_who_does_not_is_refused(
    asked: SignedRequest, keys: Credentials, now: datetime, why: str
) -> None:
    assert signature_refusal(asked, keys, now) == why


def test_tokens() -> None:
    keys = Credentials()
    assert keys.has_token(f"Bearer {keys.token}")
    assert keys.has_token(f"bearer  {keys.token} ")
    for wrong in (None, "", keys.token, f"Basic {keys.token}", f"Bearer {keys.token}x", "Bearer"):
        assert not keys.has_token(wrong)
    assert keys.token not in repr(keys)
    assert keys.secret not in repr(keys)
    assert Credentials().token != keys.token
