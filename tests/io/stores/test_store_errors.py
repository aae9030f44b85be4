from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest, HostUnreachable
from zerotools.io.stores.store_errors import store_failure

SECRET = "wJalrXUtnFEMI"
TEXT = (
    "Generic S3 error: Error performing GET https://b.s3.amazonaws.com/k?X-Amz-Signature={secret} "
    "in 1ms - Server returned non-2xx status code: {status}: <Error><Code>{code}</Code>"
    "<AWSAccessKeyId>{secret}</AWSAccessKeyId><StringToSign>{secret}</StringToSign></Error>"
)


class GenericError(Exception):
    pass


class PermissionDeniedError(Exception):
    pass


@pytest.mark.parametrize(
    ("kind", "status", "code", "raised", "said"),
    [
        (PermissionDeniedError, 403, "AccessDenied", BadRequest, "refuses it .403 AccessDenied"),
        (GenericError, 403, "SignatureDoesNotMatch", BadRequest, "403 SignatureDoesNotMatch"),
        (GenericError, 404, "NoSuchBucket", BadRequest, "s3://b does not exist"),
        (GenericError, 503, "SlowDown", HostUnreachable, "503 SlowDown. It was tried several"),
        (GenericError, 301, "PermanentRedirect", BadRequest, "another region; set AWS_REGION"),
    ],
)
def test_of_an_answer_the_status_and_the_code_are_shown_and_nothing_else(
    kind: type[Exception], status: int, code: str, raised: type[Exception], said: str
) -> None:
    text = TEXT.format(secret=SECRET, status=status, code=code)
    with pytest.raises(raised, match=said) as told:
        raise store_failure("read", "s3://b/k", kind(text))
    assert SECRET not in str(told.value)
    assert "amazonaws" not in str(told.value)


def test_without_credentials_it_is_said_where_they_are_looked_for() -> None:
    error = GenericError("http://169.254.169.254/latest/api/token: operation timed out")
    told = store_failure("read", "s3://b/k", error)
    assert isinstance(told, BadRequest)
    assert "no credentials were found; set AWS_ACCESS_KEY_ID" in str(told)
