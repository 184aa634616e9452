"""How the results of `classification` become classification.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.classification import PROMISED, Cost, Measured, Score

_NAMES = tuple(PROMISED)
_HEAD = "| " + " | ".join(["", "cases", *(name.replace("_", " ") for name in _NAMES)]) + " |"
_RULE = "|---|" + "---:|" * (len(_NAMES) + 1)
_LEFT_OUT = """\
How the classifier reads a provider that is not known. Each group of providers in turn is left out: the rows of the
vocabulary that hold for its errors alone are removed, its name is withheld, and its errors are classified with what
remains. The stricter row also removes single words that only this group's errors use, though many of them are plain
English. `benchmarks/left_out.py` says how; `python -m benchmarks classification` repeats it.

What neither row can leave out is the code that reads the shape of a body, which was written with these errors in sight.
Connection errors are not part of it: their words come from the gateway's own HTTP client."""
_FIRST = """\
What the classifier answered when it first read an error; the labels had been written before, and nothing had been
learned from it. Batch 1 was read with phrases and codes alone, batch 2 after rules for what a sentence is about
(`llm_guard/resilience/classification/vocabulary/topics.py`) had been added. The answers are kept in
`tests/data/unseen.jsonl` (`first_read`), so each can be checked. Where two experts would name different
categories (`also`), both count."""
_MISREAD = """\
The aim is 99 % of each column. What is missing are mostly words that one provider gives a meaning of its own
(Gemini's and DashScope's "exceeded your current quota" for a window of a minute, Vertex AI's "resource exhausted" for a
shared pool, API Gateway's "Limit Exceeded" for a plan), sentences without a known subject, and Chinese sentences
that only one provider of the collections uses. Adding these phrases makes the provider known; it does not make the
next one known."""


def page(measured: Measured) -> Iterator[str]:
    yield from ("# How often the classifier is right", "")
    yield from ("## Providers that are not known", "", _LEFT_OUT, "", _HEAD, _RULE)
    yield from (_row(score.name, score) for score in (measured.left_out, measured.words_left_out))
    yield _promise(measured.left_out)
    yield from ("", "### What was taken for what", "", *_confusion_of(measured.left_out))
    yield from ("", "### What is misread", "", _MISREAD, "", *_misread(measured.left_out))
    yield from ("", "### By group", "", *_providers_of(measured.left_out))
    yield from ("", "## At first sight", "", _FIRST, "", _HEAD, _RULE)
    yield from (_row(score.name, score) for score in measured.first)
    yield from ("", "## Visible", "", "These have been learned from: they show that nothing broke, not how good it is.")
    yield from ("", _HEAD, _RULE, *(_row(score.name, score) for score in measured.visible))
    yield _promise(measured.visible[0])
    for score in measured.visible:
        yield from ("", f"### {score.name}, what was taken for what", "", *_confusion_of(score))
        if score.wrong:
            yield from ("", *_misread(score))
    yield from _cost(measured.cost)


def _row(name: str, score: Score) -> str:
    return f"| {name} | {score.cases} | " + " | ".join(f"{score.share(each):.1%}" for each in _NAMES) + " |"


def _promise(score: Score) -> str:
    return "| promised | | " + " | ".join(f"{score.promised[name]:.1%}" for name in _NAMES) + " |"


def _providers_of(score: Score) -> Iterator[str]:
    yield from (_HEAD, _RULE)
    for provider, right in sorted(score.by_provider.items()):
        shares = " | ".join(f"{right[name] / right['cases']:.0%}" for name in _NAMES)
        yield f"| {provider} | {right['cases']} | {shares} |"


def _confusion_of(score: Score) -> Iterable[str]:
    yield from ("| it is | cases | right | taken for |", "|---|---:|---:|---|")
    for category, found in sorted(score.confusion.items()):
        others = ", ".join(f"{other} {count}" for other, count in found.most_common() if other != category)
        yield f"| {category} | {found.total()} | {found[category]} | {others or '-'} |"


def _misread(score: Score) -> Iterator[str]:
    yield from ("| error | group | wrong |", "|---|---|---|")
    for misreading in score.wrong:
        yield f"| {misreading.id} | {misreading.group} | {'; '.join(misreading.wrong)} |"


def _cost(cost: Cost) -> Iterator[str]:
    yield from ("", "## Cost", "")
    yield f"A typical body: {cost.median_s * 1e6:.0f} µs (p95 {cost.p95_s * 1e6:.0f} µs), promised < 50 µs."
    yield from ("", "200 kB of hostile text, promised < 10 ms:", "", "| text | ms |", "|---|---:|")
    yield from (f"| {name} | {seconds * 1e3:.2f} |" for name, seconds in cost.hostile.items())
    yield ""
