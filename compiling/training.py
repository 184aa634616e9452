"""Load that shows the C compiler which branches are usual: calls, streams, some failures.

`compiling.build` runs it as a separate process, on an instrumented package. Measures nothing.
"""

from __future__ import annotations

from llm_guard.app import create_app
from llm_guard.config import parse_config
from llm_guard.event_loop import run
from llm_guard.log import configure_logging
from llm_guard.mock.load import LoadPlan, run_load
from llm_guard.mock.provider import MockProvider

_CONFIG = """
server: {{port: 0}}
upstreams:
  openai: {{dialect: openai, base_url: "{url}/v1", api_key: mock}}
  anthropic: {{dialect: anthropic, base_url: "{url}", api_key: mock}}
defaults:
  retry: {{base_delay: 5ms}}
  hedge: {{after: p95}}
models:
  gpt-4o: {{deployments: [{{upstream: openai}}], fallbacks: [gpt-4o-mini]}}
  gpt-4o-mini: {{deployments: [{{upstream: openai}}]}}
  troubled: {{deployments: [{{upstream: openai, model: "gpt-4o+status:503@5%"}}], fallbacks: [gpt-4o-mini]}}
  claude: {{deployments: [{{upstream: anthropic}}]}}
"""
_RATE_PER_S = 250.0


async def train() -> None:
    """Sends the load. Raises RuntimeError if less than 90 % succeeds: then the usual branches were not taken."""
    provider = MockProvider(tokens=20)
    url = await provider.start("127.0.0.1", 0)
    app = create_app(parse_config(_CONFIG.format(url=url)))
    await app.start()
    try:
        for plan in _plans(app.addresses[0]):
            result = await run_load(plan)
            if result.success_share < 0.9:
                raise RuntimeError(f"{result.success_share:.0%} of {plan.models} succeeded")
    finally:
        await app.stop()
        await provider.stop()


def _plans(url: str) -> tuple[LoadPlan, ...]:
    return (
        LoadPlan(url, ("gpt-4o",), _RATE_PER_S, calls=1500),
        LoadPlan(url, ("gpt-4o", "troubled"), _RATE_PER_S, calls=300),
        LoadPlan(url, ("gpt-4o",), _RATE_PER_S, calls=150, stream=True),
        LoadPlan(url, ("claude",), _RATE_PER_S, calls=150, stream=True, dialect="anthropic"),
    )


if __name__ == "__main__":
    log = configure_logging()  # as in `serve`: without it, lines would be logged in another way
    try:
        run(train())
    finally:
        log.close()
