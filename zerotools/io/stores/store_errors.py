"""Converts errors of a store to a sentence.

The texts of libraries contain whole requests: URLs, headers, signatures. Only the status and the
code of the error are shown, so that no credential can appear.
"""

from __future__ import annotations

import re

from zerotools.core.errors import BadFile, BadRequest, HostUnreachable, ZerotoolsError
from zerotools.io.files.optional_packages import package_not_installed
from zerotools.io.stores.store_interface import OddKey

_STATUS = re.compile(r"(?:status(?: code)?:?|Client error '|Server error ') ?(\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>|\"reason\": ?\"([A-Za-z]{1,60})\"")
_CAUSES = {
    "onnection refused": "the connection was refused",
    "dns error": "its host is not known",
    "failed to lookup": "its host is not known",
    "timed out": "it did not answer in time",
    "TimedOut": "it did not answer in time",
    "operation timed out": "it did not answer in time",
    "certificate": "its certificate is not trusted",
    "onnection reset": "the connection broke",
    "onnection closed": "the connection broke",
    "IncompleteMessage": "the connection broke",
    "end of file before message length": "the connection broke",
    "response body": "the connection broke",
    "builder error": "its endpoint is http:// and not https://, or no URL",
    "URL scheme is not allowed": "its endpoint is http:// and not https://",
}
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google.internal", "Failed to get token")
_EXPIRED = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired")
"""Codes with which S3 refuses a session token; their status is 400."""
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (aws configure export-credentials "
    "--format env prints those of a profile), or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN "
    "or a service principal's variables",
    "hf": "run hf auth login, or set HF_TOKEN",
}


def store_failure(what: str, url: str, error: Exception) -> ZerotoolsError:
    """Return the error for a failed action on `url`; `what` is its verb, such as "read". The
    message has the reason, and the action to take.
    """
    scheme, text = url.partition(":")[0], str(error)
    name = type(error).__name__
    said = _status_and_code(text)
    how = CREDENTIALS.get(scheme)
    advice = f"; {how}" if how else ""
    if any(sign in text for sign in _NO_CREDENTIALS):
        return BadRequest(f"{url} cannot be {what}: no credentials were found{advice}")
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return BadRequest(f"{_bucket(url)} does not exist ({said}); check its spelling")
    if any(code in said for code in _EXPIRED):
        return BadRequest(
            f"{url} cannot be {what}: the credentials have expired ({said}); renew them{advice}"
        )
    if name in ("PermissionDeniedError", "UnauthenticatedError") or said[:3] in ("401", "403"):
        return BadRequest(
            f"{url} cannot be {what}: the store refuses it ({said or 'no rights'}). Ask for the "
            f"right, or use other credentials{advice}"
        )
    if name == "NotSupportedError":
        return BadRequest(
            f"{url} cannot be {what}: its server does not send ranges of a file; download it, and "
            "name the copy"
        )
    if "does not match any region" in text or "Redirect" in text or said[:3] == "301":
        return BadRequest(
            f"{url} cannot be {what}: the bucket is in another region; set AWS_REGION to that "
            "region"
        )
    if isinstance(error, FileNotFoundError):
        return BadFile(f"{url} does not exist ({said or 'the store does not know it'})")
    cause = next((why for sign, why in _CAUSES.items() if sign in text), "")
    why = "; ".join(filter(None, (said, cause))) or f"{name} of the library that reads it"
    return HostUnreachable(
        f"{url} cannot be {what}: {why}. It was tried several times; see whether the store can be "
        "reached from here, and run the command again"
    )


def wrong_settings(url: str, error: Exception) -> BadRequest:
    """Return the error for a store that cannot be opened: no request was sent, so the settings are
    wrong. The reason is the library's first line, which has no request in it.
    """
    said = str(error).partition("\n")[0].rpartition(" error: ")[2].rstrip(".")
    how = CREDENTIALS.get(url.partition(":")[0])
    advice = f"correct the store's environment variables: {how}" if how else "correct the URL"
    return BadRequest(f"{url} cannot be opened: {said or type(error).__name__}; {advice}")


def object_gone(url: str) -> BadFile:
    """Return the error for an object that was found before and does not exist any more."""
    return object_changed(url, "it is gone")


def object_changed(url: str, how: str) -> BadFile:
    """Return the error for an object that has changed since it was found. `how` describes the
    change.
    """
    return BadFile(
        f"{url} changed while it was read: {how}; no output is kept. Wait until no program writes "
        "there, or take a finished checkpoint, and run the command again"
    )


def _status_and_code(text: str) -> str:
    status, code = _STATUS.search(text), _CODE.search(text)
    words = [status[1]] if status else []
    words += [next(filter(None, code.groups()))] if code else []
    return " ".join(words)


def _bucket(url: str) -> str:
    return "/".join(url.split("/")[:3])


def odd_key(url: str, error: Exception) -> OddKey:
    """Return the error for a directory with an object that has an unusable key, such as `m//x`."""
    found = re.search(r'Path "(.*?)" contained|parsing Path "(.*?)":', str(error), re.DOTALL)
    key = repr(found[1] or found[2]) if found else "one of its objects"
    return OddKey(
        f"{url} cannot be listed: the key {key} has a part that cannot be a file name (empty, "
        "'.' or '..'). Remove or rename that object, or copy the checkpoint to another prefix"
    )


def missing_library(library: str) -> BadRequest:
    """Return the error for a missing `library` that a store needs."""
    return package_not_installed("reading object stores", library, "copy the checkpoint to a disk")
