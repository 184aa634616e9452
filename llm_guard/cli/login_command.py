"""`llm-guard login`: prints a one-time link that logs a browser in.

The gateway need not run: it accepts any code that was signed with its token. Exit codes: 0 success, 1 no token, 2 wrong
arguments.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from llm_guard.admin.http.credentials import OPERATOR, Credential
from llm_guard.admin.http.operator_token import Generated
from llm_guard.cli.admin_access import NoToken, address, load, token_of, url_of
from llm_guard.cli.config_option import default_path, optional_config_option
from llm_guard.clock import SystemClock


@click.command()
@optional_config_option
@click.option(
    "--url", help="URL at which browsers reach the gateway. [default: from the config; http://127.0.0.1:8080]"
)
@click.option("--as", "name", metavar="NAME", help="Name of the token in ops.tokens to log in with.")
def login(path: Path | None, url: str | None, name: str | None) -> None:
    """Print a login link for the dashboard, valid once and for 10 minutes.

    The link is signed with the gateway's token, from the config or from the file in ops.store, and does not contain it.
    """
    if url is not None and not re.match(r"https?://[^\s/?#@]+[^\s?#]*$", url):
        raise click.BadParameter("must be a URL such as https://ops.example.com", param_hint="--url")
    access = load(path or default_path())
    if (base := url or address(access) or ("http://127.0.0.1:8080" if access is None else None)) is None:
        raise click.UsageError(
            "the config has port 0, so that the system chooses one: give the gateway's URL with --url"
        )
    try:
        found = token_of(access, name)
    except NoToken as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(link(base, found.credential))


def link(base: str, credential: Credential) -> str:
    """Returns the login link. Browsers send the part behind # to no server, so that no proxy logs the code."""
    return f"{base.rstrip('/')}/dashboard#login={credential.new_code(SystemClock().wall())}"


def first_link(listener: str, generated: Generated | None) -> str | None:
    """Returns a login link for the terminal of the first start; None unless a token was just generated. `listener`: URL
    of the admin API."""
    if generated is None or not generated.is_new:
        return None
    parts = urlsplit(listener)
    base = url_of(parts.hostname or "", parts.port or 80, parts.scheme)
    return link(base, Credential.of(OPERATOR, "operator", generated.token))
