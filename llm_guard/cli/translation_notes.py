"""Texts of `llm-guard check` about translated calls: what each mixed route loses, and the table of all fields."""

from __future__ import annotations

from collections.abc import Iterator

from llm_guard.config import Config, mixed_routes


def translation_notes(config: Config) -> Iterator[str]:
    """Yields a line for each deployment for which calls are translated."""
    for model, deployment, dialect, other in mixed_routes(config):
        from llm_guard.dialects.translation.endpoints import CHAT, MESSAGES  # noqa: PLC0415  # few configs mix dialects
        from llm_guard.dialects.translation.loss_table import lists  # noqa: PLC0415  # few configs mix dialects

        settings = config.models[model].translate
        if settings is None:
            continue
        endpoint = CHAT if CHAT.dialect == dialect else MESSAGES
        hints, promises = lists("hint", endpoint.rows), lists("promise", endpoint.rows)
        allowed = settings.drop if isinstance(settings.drop, tuple) else ()
        dropped = (*(() if settings.drop == "nothing" else hints), *(name for name in promises if name in allowed))
        refused = [name for name in (*hints, *promises) if name not in dropped]
        yield (
            f"models.{model}: {endpoint.path} is translated from {dialect} to {other} for {deployment}, all other "
            f"paths are not; not sent there if a request has: {', '.join(refused)}; dropped: "
            f"{', '.join(dropped) or 'nothing'}; reasoning: {settings.reasoning}"
        )


def translation_table() -> Iterator[str]:
    """Yields a line for each field of both request formats: its class, and the name of its loss."""
    from llm_guard.dialects.translation.endpoints import CHAT, MESSAGES  # noqa: PLC0415  # few configs mix dialects

    for endpoint in (CHAT, MESSAGES):
        yield f"{endpoint.path} of {endpoint.dialect}:"
        for row in endpoint.rows:
            name = f" (drop: {row.name})" if row.name and row.name != row.path else ""
            when = f", {row.when}" if row.when else ""
            yield f"  {row.kind:<8} {row.path}{name}{when}"
