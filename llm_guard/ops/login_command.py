"""`llm-guard login`: prints a link that logs a browser in once. The gateway need not run: it takes any code that was
signed with its token.

Owns the link, and the exit codes: 0 well, 1 there is no token, 2 the arguments are wrong. Does not own where the token
is (`ops.command_token`), nor what the link's code proves (`ops.credentials`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from llm_guard.clock import SystemClock
from llm_guard.ops.command_token import NoToken, address, config_option, load, token_of, url_of
from llm_guard.ops.credentials import OPERATOR, Credential
from llm_guard.ops.operator_token import Generated


@click.command()
@config_option
@click.option("--url", help="Where browsers reach the gateway. [default: as in the config; http://127.0.0.1:8080]")
@click.option("--as", "name", metavar="NAME", help="Log in with this token of ops.tokens.")
def login(path: Path | None, url: str | None, name: str | None) -> None:
    """Print a link that opens the dashboard: good for 10 minutes, once.

    It is made with the gateway's token, from the config or from the file in ops.store, and shows nothing of it.
    """
    if url is not None and not re.match(r"https?://[^\s/?#@]+[^\s?#]*$", url):
        raise click.BadParameter("must be a URL such as https://ops.example.com", param_hint="--url")
    access = load(path)
    if (base := url or address(access) or ("http://127.0.0.1:8080" if access is None else None)) is None:
        raise click.UsageError("the config lets the system choose the port: say where the gateway is by --url")
    try:
        found = token_of(access, name)
    except NoToken as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(link(base, found.credential))


def link(base: str, credential: Credential) -> str:
    """The code stands behind a #: browsers send that part to no server, and no proxy writes it to its log."""
    return f"{base.rstrip('/')}/dashboard#login={credential.new_code(SystemClock().wall())}"


def first_link(listener: str, generated: Generated | None) -> str | None:
    """For the terminal at which a token was made; None if it was not made now. `listener`: the control plane's."""
    if generated is None or not generated.is_new:
        return None
    parts = urlsplit(listener)
    base = url_of(parts.hostname or "", parts.port or 80, parts.scheme)
    return link(base, Credential.of(OPERATOR, "operator", generated.token))
