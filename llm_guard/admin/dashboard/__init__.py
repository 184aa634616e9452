"""/dashboard, and / which leads to it: static files of the browser's page, which uses the JSON endpoints.

The files contain no data, and so need no token: the page loads all data with the cookie of a login (`admin.api.login`).
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from llm_guard.admin.http.endpoint import TEXT, AdminRequest, AdminResponse, Endpoint, EndpointGroup, Refused

_HERE = Path(__file__).parent
_TEXTS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_KINDS = {kind: f"{media}; charset=utf-8" for kind, media in _TEXTS.items()} | {".woff2": "font/woff2"}
_FOLDERS = (_HERE, _HERE / "uplot", _HERE / "inter")
_ABOUT = b"llm_guard, a proxy for LLM calls. API: /v1/, dashboard: /dashboard, health: /healthz\n"
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # Browsers with Trusted Types refuse innerHTML, so that no text becomes markup.
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


class Dashboard(EndpointGroup):
    """The files, read once. Raises OSError if the installation lacks them."""

    def __init__(self) -> None:
        paths = [path for folder in _FOLDERS for path in folder.iterdir() if path.suffix in _KINDS]
        self._answers = {path.name: _answer(path) for path in paths}
        self._page = self._answers.pop("index.html")

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/", "Leads to the dashboard.", self._root, media=TEXT, is_open=True),
            Endpoint("GET", "/dashboard", "Returns the dashboard.", self._index, media=_TEXTS[".html"], is_open=True),
            Endpoint("GET", "/dashboard/{file}", "Files of the dashboard.", self._file, media="*/*", is_open=True),
        ]

    async def _root(self, asked: AdminRequest) -> AdminResponse:
        """Redirects a browser. The address is relative, for reverse proxies that serve the gateway below a path."""
        if "text/html" in asked.headers.get("accept", ""):
            return AdminResponse(b"", status=303, headers=(("Location", "dashboard"), ("Vary", "Accept")))
        return AdminResponse(_ABOUT, TEXT, headers=(("Vary", "Accept"),))

    async def _index(self, asked: AdminRequest) -> AdminResponse:
        return _unless_known(self._page, asked)

    async def _file(self, asked: AdminRequest) -> AdminResponse:
        name = asked.params["file"]
        if not name:
            return AdminResponse(b"", status=308, headers=(("Location", "../dashboard"),))
        if name not in self._answers:
            raise Refused(404, "unknown_path", "the dashboard has no such file: open /dashboard")
        return _unless_known(self._answers[name], asked)


def _answer(path: Path) -> AdminResponse:
    body = path.read_bytes()
    headers = (
        ("Content-Security-Policy", _CONTENT_POLICY),
        ("Cache-Control", "no-cache"),  # revalidated each time, so that a new version shows at once
        ("ETag", f'"{sha256(body).hexdigest()[:32]}"'),
    )
    return AdminResponse(body, _KINDS[path.suffix], headers=headers)


def _unless_known(answer: AdminResponse, asked: AdminRequest) -> AdminResponse:
    """Returns 304 if the browser has the current version (RFC 9110, section 13.1.2)."""
    tag = dict(answer.headers)["ETag"]
    known = {text.strip().removeprefix("W/") for text in asked.headers.get("if-none-match", "").split(",")}
    if tag in known or "*" in known:
        return AdminResponse(b"", answer.content_type, 304, answer.headers)
    return answer
