"""Texts of `llm-guard check` about calls that are not sent as they are: what each mixed route loses, the table of all
fields, and the endpoints of each form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from llm_guard.config import Config, chat_routes, mixed_routes
from llm_guard.resilience.translation.settings import TranslateSettings

if TYPE_CHECKING:  # few configs mix dialects
    from llm_guard.dialects.translation.loss_table import LossRow


def translation_notes(config: Config) -> Iterator[str]:
    """Yields a line for each deployment and each endpoint whose calls are translated for it."""
    for model, deployment, dialect, other in mixed_routes(config):
        from llm_guard.dialects.translation.endpoints import CLIENT_ENDPOINTS  # noqa: PLC0415  # few configs mix dialects

        settings = config.models[model].translate
        if settings is None:
            continue
        for endpoint in CLIENT_ENDPOINTS:
            if endpoint.dialect == dialect:
                what = f"{endpoint.path} is translated from {dialect} to {other} for {deployment}"
                yield f"models.{model}: {what}; {_losses(endpoint.rows, settings)}"
    for model, deployment in chat_routes(config):
        from llm_guard.dialects.translation.endpoints import RESPONSES  # noqa: PLC0415  # few configs need it

        settings = config.models[model].translate
        if settings is not None:
            what = f"{RESPONSES.path} is translated into a chat for {deployment}"
            yield f"models.{model}: {what}; {_losses(RESPONSES.rows, settings)}"


def _losses(rows: Iterable[LossRow], settings: TranslateSettings) -> str:
    """Returns which fields a request must not have, and which are dropped."""
    from llm_guard.dialects.translation.loss_table import lists  # noqa: PLC0415  # few configs mix dialects

    hints, promises = lists("hint", rows), lists("promise", rows)
    allowed = settings.drop if isinstance(settings.drop, tuple) else ()
    dropped = (*(() if settings.drop == "nothing" else hints), *(name for name in promises if name in allowed))
    refused = [name for name in (*hints, *promises) if name not in dropped]
    return (
        f"not sent there if a request has: {', '.join(refused)}; dropped: {', '.join(dropped) or 'nothing'}; "
        f"reasoning: {settings.reasoning}"
    )


def form_notes(config: Config) -> Iterator[str]:
    """Yields a line for each upstream that takes requests in the form of a cloud."""
    for name, upstream in config.upstreams.items():
        if upstream.form is not None:
            from llm_guard.dialects.forms import FORMS  # noqa: PLC0415  # few upstreams have a form

            paths = ", ".join(f"POST {path}" for path in FORMS[upstream.form].paths)
            yield f"upstreams.{name}: serves only {paths}, in the form {upstream.form}"


def translation_table() -> Iterator[str]:
    """Yields a line for each field of the request formats: its class, and the name of its loss."""
    from llm_guard.dialects.translation.endpoints import CLIENT_ENDPOINTS  # noqa: PLC0415  # few configs mix dialects

    for endpoint in CLIENT_ENDPOINTS:
        yield f"{endpoint.path} of {endpoint.dialect}:"
        for row in endpoint.rows:
            name = f" (drop: {row.name})" if row.name and row.name != row.path else ""
            when = f", {row.when}" if row.when else ""
            yield f"  {row.kind:<8} {row.path}{name}{when}"
