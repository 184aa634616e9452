"""Credentials of a cloud in place of an upstream's API key (`auth: aws`, `google` or `entra`), and the parameters of
its `query`.

`upstreams.credentials` obtains and renews the credentials.
"""

from __future__ import annotations

import re
import urllib.parse
from importlib.util import find_spec
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, JsonValue

from llm_guard.config.fields import NonEmptyText, Strict, wrong

CloudAuth = Literal["aws", "google", "entra"]
CLOUDS: tuple[CloudAuth, ...] = get_args(CloudAuth)

_LIBRARIES: dict[CloudAuth, tuple[str, ...]] = {
    "aws": ("botocore",), "google": ("google.auth", "requests"), "entra": ("azure.identity",),
}  # fmt: skip
_PACKAGES: dict[CloudAuth, str] = {"aws": "botocore", "google": "google-auth[requests]", "entra": "azure-identity"}
_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+)?-(?:central|north|south|(?:north|south)?(?:east|west))-[0-9]{1,2}")
_MOST_PARAMETERS = 16


class AwsSettings(Strict):
    """Credentials from AWS's default chain (environment, profiles, SSO, web identity, container, instance), for
    requests with a signature (SigV4)."""

    region: NonEmptyText | None = None
    """None: the region in the host of `base_url`."""
    service: NonEmptyText | None = None
    """Name that signatures have; None: by the host of `base_url`: `bedrock-mantle`, `bedrock` or `sagemaker`."""
    profile: NonEmptyText | None = None
    """Profile of AWS's config files; None: AWS_PROFILE, or the default one."""


class GoogleSettings(Strict):
    """OAuth tokens of Google Cloud."""

    credentials_file: NonEmptyText | None = None
    """A service account's key, in JSON. None: application default credentials (GOOGLE_APPLICATION_CREDENTIALS, which
    may be the config of a workload identity; the metadata of the machine; gcloud)."""
    scopes: tuple[NonEmptyText, ...] = Field(default=("https://www.googleapis.com/auth/cloud-platform",), min_length=1)
    """OAuth scopes of the tokens."""


def _https(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise wrong("must be a URL that begins with https://")
    return url.rstrip("/")


class EntraSettings(Strict):
    """Tokens of Microsoft Entra ID, from Azure's default chain (environment, workload identity, managed identity,
    Azure CLI)."""

    scope: NonEmptyText = "https://cognitiveservices.azure.com/.default"
    """Scope of the tokens; `https://ai.azure.com/.default` for some endpoints of Foundry."""
    authority: Annotated[str, AfterValidator(_https)] | None = None
    """Address that issues the tokens; None: AZURE_AUTHORITY_HOST, or the public cloud's."""


CloudSettings = AwsSettings | GoogleSettings | EntraSettings
SETTINGS: dict[CloudAuth, type[CloudSettings]] = {
    "aws": AwsSettings, "google": GoogleSettings, "entra": EntraSettings,
}  # fmt: skip


def _check_query(query: dict[str, str]) -> dict[str, str]:
    if len(query) > _MOST_PARAMETERS:
        raise wrong(f"has more than {_MOST_PARAMETERS} parameters")
    if not all(name and name.isprintable() and value.isprintable() for name, value in query.items()):
        raise wrong("must have names, and printable characters only")
    return query


Query = Annotated[dict[str, str], AfterValidator(_check_query)]


def signing_scope(host: str) -> tuple[str | None, str | None]:
    """Returns region and service that signatures for a host of AWS have; None for what the host does not show."""
    labels = host.lower().split(".")
    region = next((label for label in labels if _REGION.fullmatch(label)), None)
    if any(label.startswith("bedrock-mantle") for label in labels):
        return region, "bedrock-mantle"
    service = next((name for name in ("bedrock", "sagemaker") if any(label.startswith(name) for label in labels)), None)
    return region, service


def resolved(auth: CloudAuth, settings: CloudSettings | None, base_url: str) -> CloudSettings:
    """Returns the settings of an upstream with their defaults, and for AWS with those from the host."""
    if auth != "aws":
        return settings or SETTINGS[auth]()
    own = settings if isinstance(settings, AwsSettings) else AwsSettings()
    region, service = signing_scope(urllib.parse.urlsplit(base_url).hostname or "")
    return own.model_copy(update={"region": own.region or region, "service": own.service or service})


def check_cloud(auth: CloudAuth, data: dict[str, Any]) -> None:
    """Checks that `auth` can work with the keys before it. Raises PydanticCustomError."""
    for key in ("api_key", "api_key_file", "api_keys"):
        if data.get(key):
            raise wrong(f"{auth} conflicts with {key}: remove {key}, since the credentials come from the cloud")
    if not _is_installed(auth):
        raise wrong(f"{auth} needs {_PACKAGES[auth]}, which is not installed: pip install 'llm-guard-proxy[{auth}]'")
    if auth == "aws" and "base_url" in data and "aws" in data:
        settings = resolved(auth, data["aws"], data["base_url"])
        for key in ("region", "service"):
            if getattr(settings, key) is None:
                raise wrong(f"aws needs aws.{key}: the host of base_url does not show the {key}")


def _is_installed(auth: CloudAuth) -> bool:
    try:
        return all(find_spec(name) is not None for name in _LIBRARIES[auth])
    except ModuleNotFoundError:  # not even the package around it
        return False


def schema_rules(sources: dict[str, JsonValue]) -> list[JsonValue]:
    """Returns the JSON Schema of the keys that depend on `auth`; `sources` has the schemas of keys that are set."""
    is_cloud: JsonValue = {"properties": {"auth": {"enum": list(CLOUDS)}}, "required": ["auth"]}
    keyless: list[JsonValue] = [
        {"if": is_cloud, "then": {"not": {"required": [name], "properties": {name: source}}}}
        for name, source in sources.items()
    ]
    settings: list[JsonValue] = [
        {
            "if": {"properties": {name: {"type": "object"}}, "required": [name]},
            "then": {"properties": {"auth": {"const": name}}, "required": ["auth"]},
        }
        for name in CLOUDS
    ]
    return [*keyless, *settings]
