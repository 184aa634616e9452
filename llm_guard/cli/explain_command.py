"""`llm-guard explain`: fetches a call from a running gateway, and draws it.

Exit codes: 0 success, 1 no response, 2 wrong arguments.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from llm_guard.admin.api.calls import CallsView
from llm_guard.cli.admin_access import Access, NoToken, address, load, token_of
from llm_guard.cli.config_option import default_path, optional_config_option
from llm_guard.log import printable
from llm_guard.proxy.telemetry.access_log import CallLine
from llm_guard.proxy.telemetry.waterfall import PLAIN, UNICODE, table, waterfall
from llm_guard.resilience.routing.client_hints import is_loopback

_TIMEOUT_S = 10.0
_MOST_BYTES = 1 << 24
_USUAL_WIDTH = 100


@click.command()
@click.argument("name", metavar="[ID]", required=False)
@optional_config_option
@click.option("--url", help="URL of the admin API. [default: from the config; http://127.0.0.1:8080]")
@click.option(
    "--token", envvar="LLM_GUARD_OPS_TOKEN", help="Operator token. [default: from the config, or the file in ops.store]"
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Number of calls to list, without an ID.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the response as JSON.")
@click.option("--plain", is_flag=True, help="Draw in ASCII.")
def explain(
    name: str | None, path: Path | None, url: str | None, token: str | None, limit: int, as_json: bool, plain: bool
) -> None:  # fmt: skip
    """Show a call with all its attempts, or without an ID the last failed calls.

    The ID is in the response header x-llm-guard-request-id, and as request_id in the log.
    """
    if name is not None and not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise click.BadParameter("is not the id of a call, such as lg-0123456789abcdef0123", param_hint="ID")
    # The default config is not the one of a gateway that has been named: its token must not be sent there.
    access = load(path if path is not None or url is not None else default_path())
    url = url or address(access) or "http://127.0.0.1:8080"
    if (is_local := _is_local(url)) is None:
        raise click.BadParameter("must be a URL such as http://127.0.0.1:8080", param_hint="--url")
    if not token and (access is not None or is_local):  # a token from this machine must not be sent to another
        token = _found_token(access)
    page = f"/admin/calls/{name}" if name is not None else f"/admin/calls?failed=true&limit={limit}"
    try:
        said = _fetch(url.rstrip("/") + page, token, is_local=is_local)
        click.echo(said.decode() if as_json else _shown(said, is_one=name is not None, is_plain=plain))
    except _NoResponse as error:
        click.echo(printable(str(error)), err=True)
        sys.exit(1)


class _NoResponse(Exception):
    """No usable response. The message is for the person at the terminal."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects, which would send the token to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _found_token(access: Access | None) -> str | None:
    """Returns the token, or None: then the gateway responds that it needs one."""
    try:
        return token_of(access).token
    except NoToken:
        return None


def _is_local(url: str) -> bool | None:
    """Returns whether the URL is of this machine, None if it is no HTTP URL."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return None if not is_whole or parts.query else parts.hostname == "localhost" or is_loopback(parts.hostname)


def _fetch(url: str, token: str | None, *, is_local: bool) -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    proxies = [urllib.request.ProxyHandler({})] if is_local else []
    opener = urllib.request.build_opener(_NoRedirects, *proxies)
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310  # the scheme was checked
        with opener.open(request, timeout=_TIMEOUT_S) as answered:
            said: bytes = answered.read(_MOST_BYTES)
            return said
    except urllib.error.HTTPError as error:
        with error:
            raise _NoResponse(_refusal(url, error.code, error.read(_MOST_BYTES))) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise _NoResponse(f"cannot connect to {url}: {reason}") from None


def _refusal(url: str, status: int, body: bytes) -> str:
    try:
        said = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{url} responded {status}: check whether it is the URL of a gateway"
    hint = " (with this command: -c FILE, --token or LLM_GUARD_OPS_TOKEN)" if status == 401 else ""
    return f"the gateway responded {status}: {said}{hint}"


def _shown(said: bytes, *, is_one: bool, is_plain: bool) -> str:
    strokes = UNICODE if not is_plain and _can_draw() else PLAIN
    try:
        if is_one:
            width = shutil.get_terminal_size((_USUAL_WIDTH, 24)).columns
            return waterfall(msgspec.json.decode(said, type=CallLine), strokes, width)
        return table(msgspec.json.decode(said, type=CallsView).calls) or "no failed calls in memory"
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _NoResponse("the response is not a gateway's: check the URL") from None


def _can_draw() -> bool:
    try:
        "░▓█▏".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
