"""The dashboard's files: how they are served, their contents, and what they must not contain."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import llm_guard.admin.dashboard as served
from llm_guard.admin.dashboard import Dashboard
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Refused

ROOT = Path(__file__).parents[4]
FOLDER = Path(served.__file__).parent
OURS = sorted(path for path in FOLDER.iterdir() if path.suffix in (".html", ".css", ".js"))
SCRIPTS = [path for path in OURS if path.suffix == ".js"]
TEXT = {path.name: path.read_text() for path in OURS}

each = pytest.mark.parametrize("name", TEXT)


async def give(path: str, **headers: str) -> AdminResponse:
    _root, index, files = (page.give for page in Dashboard().pages())
    assert index is not None
    assert files is not None
    asked = AdminRequest("GET", path, {name.replace("_", "-"): value for name, value in headers.items()})
    if path == "/dashboard":
        return await index(asked)
    asked.params = {"file": path.removeprefix("/dashboard/")}
    return await files(asked)


# serving


async def test_page_has_a_content_security_policy() -> None:
    policy = dict((await give("/dashboard")).headers)["Content-Security-Policy"].split("; ")
    assert policy == [
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:",
        "font-src 'self'",
        "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
        "require-trusted-types-for 'script'", "trusted-types 'none'",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("", "text/html; charset=utf-8"), ("/style.css", "text/css; charset=utf-8"),
        ("/main.js", "text/javascript; charset=utf-8"), ("/uPlot.min.css", "text/css; charset=utf-8"),
        ("/inter-latin.woff2", "font/woff2"),
    ],
)  # fmt: skip
async def test_files_have_their_content_types(path: str, kind: str) -> None:
    answer = await give(f"/dashboard{path}")
    assert (answer.status, answer.content_type) == (200, kind)
    assert answer.body


@pytest.mark.parametrize(
    "name",
    [
        "../guard.py",
        "..",
        ".",
        "__init__.py",
        "LICENSE",
        "index.html",
        "uplot",
        "uplot/LICENSE",
        "inter/LICENSE",
        "/etc/passwd",
        "a\0b",
    ],
)
async def test_file_that_is_not_listed_is_not_found(name: str) -> None:
    with pytest.raises(Refused, match="no such file") as refused:
        await give(f"/dashboard/{name}")
    assert refused.value.status == 404


async def test_address_with_a_trailing_slash_leads_to_the_page() -> None:
    answer = await give("/dashboard/")
    assert (answer.status, answer.headers) == (308, (("Location", "../dashboard"),))


async def test_browser_that_has_a_file_is_not_sent_it_again() -> None:
    tag = dict((await give("/dashboard/main.js")).headers)["ETag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = await give("/dashboard/main.js", if_none_match=known)
        assert (answer.status, answer.body, dict(answer.headers)["ETag"]) == (304, b"", tag)
    assert (await give("/dashboard/main.js", if_none_match='"other"')).status == 200
    assert (await give("/dashboard/style.css", if_none_match=tag)).status == 200


async def test_everything_that_the_page_names_is_served() -> None:
    wanted = set(re.findall(r'(?:src|href)="dashboard/([^"]+)"', TEXT["index.html"]))
    for name in [path.name for path in SCRIPTS]:
        wanted.update(re.findall(r'from "\./([^"]+)"', TEXT[name]))
    assert {"main.js", "style.css", "uPlot.iife.min.js", "feed.js", "dom.js"} <= wanted
    for name in wanted:
        assert (await give(f"/dashboard/{name}")).status == 200


def test_no_file_is_left_that_nothing_names() -> None:
    everything = "".join(TEXT.values())
    assert [path.name for path in SCRIPTS if f'/{path.name}"' not in everything] == []


def test_files_are_in_the_wheel(tmp_path: Path) -> None:
    builder = WheelBuilder(str(ROOT))
    packed = {file.distribution_path for file in builder.recurse_included_files()}
    wanted = [*OURS, *(FOLDER / "uplot").iterdir(), *(FOLDER / "inter").iterdir()]
    assert {str(path.relative_to(ROOT)) for path in wanted} <= packed


# contents


@each
def test_no_text_can_become_markup_or_a_script(name: str) -> None:
    banned = (
        r"innerHTML|outerHTML|insertAdjacent|document\.write|srcdoc|DOMParser|createContextualFragment|setHTML"
        r"|\beval\b|new Function|javascript:|setAttribute\(\"(?:style|on)"
    )
    assert re.findall(banned, TEXT[name]) == []


@each
def test_nothing_is_requested_from_other_hosts(name: str) -> None:
    names = {"http://www.w3.org/2000/svg"}  # an XML namespace, which is never requested
    assert set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"')]*", TEXT[name])) <= names
    assert not re.search(r"@import", TEXT[name])
    assert set(re.findall(r"url\(([^)]*)\)", TEXT[name])) <= {'"inter-latin.woff2"'}


def test_page_has_no_inline_script_style_or_handler() -> None:
    page = TEXT["index.html"]
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page)
    assert "<form" in page
    assert not re.search(r"\saction=", page)


def test_no_script_stores_the_token() -> None:
    assert [name for name, text in TEXT.items() if "localStorage" in text] == ["theme.js"]
    assert [name for name, text in TEXT.items() if "sessionStorage" in text] == ["api.js"]
    assert not any("document.cookie" in text or "authorization" in text for text in TEXT.values())

    # A link to a view may stand where a login code does; `links.js` reads only the names of views.
    readers = {name for name, text in TEXT.items() if re.search(r"\blocation\.h(?:ash|ref)\b", text)}
    assert readers == {"links.js", "login.js"}
    assert "prepareLinks({ call: showCall, deployment: openDeployment, model: model.showModel });" in TEXT["main.js"]


def test_library_is_as_published_and_has_its_licence() -> None:
    """uPlot 1.6.32, as published on npm."""
    prints = {path.name: sha256(path.read_bytes()).hexdigest()[:16] for path in (FOLDER / "uplot").iterdir()}
    assert prints == UPLOT
    assert "uPlot (v1.6.32)" in (FOLDER / "uplot" / "uPlot.iife.min.js").read_text()[:80]
    assert "The MIT License" in (FOLDER / "uplot" / "LICENSE").read_text()


def test_font_is_as_published_and_has_its_licence() -> None:
    """Inter 4.1, Latin, as published on npm in @fontsource-variable/inter 5.3.0."""
    prints = {path.name: sha256(path.read_bytes()).hexdigest()[:16] for path in (FOLDER / "inter").iterdir()}
    assert prints == {"LICENSE": "3b0a5fca3d17942c", "inter-latin.woff2": "3100e775e8616cd2"}
    assert "SIL Open Font License, Version 1.1" in (FOLDER / "inter" / "LICENSE").read_text()


UPLOT = {
    "LICENSE": "8f989229699b4fe2",
    "uPlot.iife.min.js": "19c8d4c6ad88929a",
    "uPlot.min.css": "df630c6a8d6f8eea",
}


@each
def test_file_can_be_read_in_one_sitting(name: str) -> None:
    lines = TEXT[name].splitlines()
    assert len(lines) <= 350
    assert name == "index.html" or max(map(len, lines)) <= 120


# colours


def variables(theme: str) -> dict[str, str]:
    """Returns the colours of style.css in one theme."""
    pairs = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]+), (#[0-9a-f]+)\)", TEXT["style.css"])
    return {name: dark if theme == "dark" else light for name, light, dark in pairs}


def luminance(colour: str) -> float:
    """Returns the relative luminance as defined by WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


PAPERS = ("paper", "panel", "bad-paper", "warn-paper", "held-paper")
TEXTS = ("ink", "muted", "accent", "well", "warn", "bad", "held")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("paper", PAPERS)
def test_text_can_be_read(theme: str, paper: str) -> None:
    colours = variables(theme)
    poor = {name: contrast(colours[name], colours[paper]) for name in TEXTS}
    assert min(poor.values()) >= 4.5, poor


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_controls_can_be_seen(theme: str) -> None:
    colours = variables(theme)
    assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
    for paper in ("paper", "panel"):
        assert contrast(colours["edge"], colours[paper]) >= 3


def test_every_colour_is_a_variable_with_both_themes() -> None:
    style = TEXT["style.css"]
    used = set(re.findall(r"var\(--([a-z-]+)\)", style)) - {"text", "code", "gap"}
    assert used <= variables("light").keys()
    rules = style[style.index("}") :]  # the part after the variables
    assert re.findall(r"#[0-9a-f]{3,8}\b", rules) == ["#0c0f138c"]  # backdrop of a dialog
    assert "gradient" not in style


def test_motion_stops_if_reduced_motion_is_preferred() -> None:
    assert "@media (prefers-reduced-motion: reduce)" in TEXT["style.css"]
