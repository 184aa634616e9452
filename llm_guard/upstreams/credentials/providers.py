"""Obtains credentials with the clouds' own libraries, which are extras. Blocks; called in a thread.

Each call starts from scratch: a library's own cache would return what is about to expire, and miss changed files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC
from functools import partial
from typing import Any

from llm_guard.config import AwsSettings, CloudSettings, EntraSettings, GoogleSettings
from llm_guard.upstreams.credentials.source import CloudCredential

_TIMEOUT_S = 20.0
_LOGGERS = ("azure", "botocore", "google", "msal", "urllib3")


class NoCredentials(Exception):
    """Raised if a cloud has no credentials for this machine; the message names the remedy."""


def fetcher_of(settings: CloudSettings) -> Callable[[], CloudCredential]:
    """Returns the function that obtains credentials with these settings. The libraries' own log lines are left out:
    they repeat the error, in many lines, and may quote what they have sent."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    match settings:
        case AwsSettings():
            return partial(from_aws, settings)
        case GoogleSettings():
            return partial(from_google, settings)
        case EntraSettings():
            return partial(from_entra, settings)


def from_aws(settings: AwsSettings) -> CloudCredential:
    """Obtains a key from AWS's default chain. Raises what botocore raises, and NoCredentials."""
    from botocore.session import Session  # noqa: PLC0415  # an extra

    session = Session(profile=settings.profile)
    session.set_config_variable("region", settings.region)  # for AWS's token service
    found = session.get_credentials()
    if found is None:
        raise NoCredentials("AWS's chain finds none: set AWS_ACCESS_KEY_ID, a profile, or a role of this machine")
    key = found.get_frozen_credentials()
    # There is no public way to the time of expiry; without it the credentials are looked up every few minutes.
    ends_at = getattr(found, "_expiry_time", None)
    expires_at = None if ends_at is None else ends_at.timestamp()
    return CloudCredential(key.token or "", expires_at, key.access_key, key.secret_key)


def from_google(settings: GoogleSettings) -> CloudCredential:
    """Obtains a token of Google. Raises what google-auth raises."""
    import google.auth  # noqa: PLC0415  # an extra
    from google.auth.transport.requests import Request  # noqa: PLC0415  # an extra
    from google.oauth2.service_account import Credentials  # noqa: PLC0415  # an extra

    kind: Any = Credentials  # typed in part only
    if settings.credentials_file is not None:
        found = kind.from_service_account_file(settings.credentials_file, scopes=settings.scopes)
    else:
        found, _ = google.auth.default(scopes=settings.scopes)
    found.refresh(partial(Request(), timeout=_TIMEOUT_S))
    expires_at = None if found.expiry is None else found.expiry.replace(tzinfo=UTC).timestamp()
    return CloudCredential(found.token, expires_at)


def from_entra(settings: EntraSettings) -> CloudCredential:
    """Obtains a token of Microsoft Entra ID. Raises what azure-identity raises."""
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415  # an extra

    own = {} if settings.authority is None else {"authority": settings.authority, "disable_instance_discovery": True}
    with DefaultAzureCredential(**own, connection_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S) as credential:
        found = credential.get_token(settings.scope)
    return CloudCredential(found.token, float(found.expires_on))
