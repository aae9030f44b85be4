from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest, HostUnreachable
from zerotools.io.stores.store_errors import store_failure, wrong_settings

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
        (GenericError, 400, "ExpiredToken", BadRequest, "expired .400 ExpiredToken.; renew"),
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


@pytest.mark.parametrize(
    ("url", "text", "said"),
    [
        (
            "az://b",
            "Generic MicrosoftAzure error: Account must be specified\n\nDebug source:\nGeneric {",
            "az://b cannot be opened: Account must be specified; correct the store's environment "
            "variables: set AZURE_STORAGE_ACCOUNT_NAME",
        ),
        (
            "gs://b",
            "Generic GCS error: GCP credential error: Unable to decode: key must be a string",
            "gs://b cannot be opened: Unable to decode: key must be a string; correct",
        ),
        ("https://h", "", "https://h cannot be opened: GenericError; correct the URL"),
    ],
)
def test_a_store_that_cannot_be_opened_has_wrong_settings(url: str, text: str, said: str) -> None:
    assert str(wrong_settings(url, GenericError(text))).startswith(said)


def test_without_credentials_it_is_said_where_they_are_looked_for() -> None:
    error = GenericError("http://169.254.169.254/latest/api/token: operation timed out")
    told = store_failure("read", "s3://b/k", error)
    assert isinstance(told, BadRequest)
    assert "no credentials were found; set AWS_ACCESS_KEY_ID" in str(told)
