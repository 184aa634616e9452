"""Checks of the corpus: a path into what was seen, a comparison, and a value.

Roots of a path are `sent`, the request that the provider got last; `sent_headers`; `reply`, see `replies.py`; and
`status`. A step is a member or an index, `*` is each one. Comparisons:

is, among     the value, or one of the values; null is also what is absent
absent        nothing, null, or an empty object
has, lacks    a text contains the value; of other values, their JSON
matches       a regular expression for all of a text, or of each text of a list; for other values, for their JSON
above, below  a number, without the bound
count         length of a list
distinct      number of different values of a list
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any


def problem(seen: Mapping[str, Any], check: list[Any]) -> str:
    """Returns why a check does not hold; empty if it does."""
    path, comparison, *rest = check
    value, wanted = value_at(seen, path), rest[0] if rest else None
    try:
        holds = _COMPARISONS[comparison](value, wanted)
    except (TypeError, ValueError):
        holds = False
    return "" if holds else f"{path} {comparison} {_text(wanted)}: {_text(value)[:200]}"


def value_at(value: Any, path: str) -> Any:
    """Returns what is at a path; None if there is nothing."""
    step, _, rest = path.partition(".")
    if step == "*":
        found = [value_at(item, rest) if rest else item for item in value] if isinstance(value, list) else None
    elif isinstance(value, list):
        found = value[int(step)] if step.isdigit() and int(step) < len(value) else None
    else:
        found = value.get(step) if isinstance(value, Mapping) else None
    return found if step == "*" or not rest or found is None else value_at(found, rest)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _contains(value: Any, wanted: Any) -> bool:
    return _text(wanted) in _text(value)


def _matches(value: Any, wanted: str) -> bool:
    texts = value if isinstance(value, list) and all(isinstance(item, str) for item in value) else [_text(value)]
    return value is not None and bool(texts) and all(re.fullmatch(wanted, text) for text in texts)


def _is(value: Any, wanted: Any) -> bool:
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise TypeError


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "is": _is,
    "among": lambda value, wanted: any(_is(value, each) for each in wanted),
    "absent": lambda value, _: value in (None, {}),
    "has": _contains,
    "lacks": lambda value, wanted: value is not None and not _contains(value, wanted),
    "matches": _matches,
    "above": lambda value, wanted: _number(value) > wanted,
    "below": lambda value, wanted: _number(value) < wanted,
    "count": lambda value, wanted: isinstance(value, list) and len(value) == wanted,
    "distinct": lambda value, wanted: len({*map(_text, value)}) == wanted,
}
