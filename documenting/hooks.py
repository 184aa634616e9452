"""MkDocs hooks (`hooks` in mkdocs.yml): the generated parts of pages, and links to files of the repository."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from documenting import configuration, metrics

PARTS: Mapping[str, Callable[[], str]] = {"configuration": configuration.page, "metrics": metrics.page}
RESULTS = Path("benchmarks/results")
_PLACE = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the benchmarks' results, which pages link to, and their pictures."""
    for path in sorted(RESULTS.iterdir()):
        if path.suffix in (".md", ".png"):
            files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path.resolve())))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Replaces each `<!-- generated: NAME -->`; raises KeyError for a name that does not exist. Links to
    other files of the repository become plain text: the site does not have them."""
    if page.file.src_uri.startswith("results/"):
        page.meta["search"] = {"exclude": True}  # their tables would be found before the pages
    text = markdown.replace(f"](../{RESULTS}/", "](results/")
    return _PLACE.sub(lambda place: PARTS[place[1]](), _OUTSIDE.sub(_named, text))


def _named(link: re.Match[str]) -> str:
    text, path = link.groups()
    return f"`{path}`" if text in path else f"{text} (`{path}`)"
