"""Parameters that several endpoints take: labels of deployments, names that must be known, and durations of overrides.

Also finds the models that have no deployment left when some are taken out.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Annotated

from msgspec import Meta

from llm_guard.admin.http.endpoint import Refused
from llm_guard.config import Config, matching_key, near_names
from llm_guard.resilience.units import parse_duration

_NOT_ZERO = r"(?![0.]*[a-z])"
_MOST = r"([0-9]{1,4}h|[0-9]{1,6}m|[0-9]{1,8}s|[0-9]{1,11}ms|[0-9]{1,4}\.[0-9]{1,3}(h|m|s|ms))"
"""Far below what a date can represent."""
Duration = Annotated[
    str,
    Meta(
        pattern=f"^{_NOT_ZERO}{_MOST}$",
        description="A duration such as 200ms, 1.5s, 2m or 1h: greater than 0, and at most 9999h or 999999m.",
    ),
]


def seconds_of(text: str) -> float:
    """Returns the seconds of a `Duration`."""
    return parse_duration(text)


def optional_seconds_of(text: str | None) -> float | None:
    """Returns the seconds, or None for no end."""
    return None if text is None else seconds_of(text)


def labels_of(config: Config) -> dict[str, str]:
    """Returns the upstream of each label, including those of unused patterns and of pass-through calls."""
    found = {name: name for name in config.upstreams}
    for key, model in config.models.items():
        found |= {
            f"{deployment.upstream}/{deployment.model or key}": deployment.upstream for deployment in model.deployments
        }
    return found


def check_known(name: str, known: AbstractSet[str], kind: str) -> None:
    """Raises Refused if the name is unknown."""
    if name not in known:
        raise unknown(name, known, kind)


def unknown(name: str, known: AbstractSet[str], kind: str) -> Refused:
    """Returns the response to an unknown name, with the known names that it may be a misspelling of."""
    near = near_names(name, known)
    hint = f"; similar names: {', '.join(near)}" if near else ""
    return Refused(404, f"unknown_{kind}", f"no {kind} is named {name[:256]!r}{hint}")


def left_alone(config: Config, closed: AbstractSet[str]) -> list[str]:
    """Returns the keys of `models`, and pass-through paths, that have no deployment left without these labels."""
    models = [key for key in config.models if all(label in closed for label in serving(config, key))]
    through = [f"/upstreams/{name}" for name in config.upstreams if name in closed]
    return [*models, *through]


def serving(config: Config, key: str) -> Iterator[str]:
    """Yields the labels of the deployments of a model and of its fallbacks. `key`: one of `models`."""
    waiting, seen = [key], set[str]()
    while waiting:
        key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        model = config.models[key]
        yield from (f"{deployment.upstream}/{deployment.model or key}" for deployment in model.deployments)
        waiting += [
            found for fallback in model.fallbacks if (found := matching_key(config.models, fallback)) is not None
        ]
