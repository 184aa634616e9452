"""A gateway loads no translation unless its config mixes dialects, and the calls of one dialect load none."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def loaded(fallback: str) -> set[str]:
    """Returns the modules of the translation that a gateway has loaded after ordinary calls of both dialects."""
    script = f"""
        import asyncio, json, sys, urllib.request
        from llm_guard.app import create_app
        from llm_guard.config import parse_config
        from llm_guard.mock.provider import MockProvider

        CONFIG = '''
        server: {{port: 0, drain: 1s}}
        ops: {{log: {{level: error}}}}
        upstreams:
          openai: {{dialect: openai, base_url: "URL/v1", api_key: k}}
          anthropic: {{dialect: anthropic, base_url: "URL", api_key: k}}
        models:
          gpt: {{deployments: [{{upstream: openai}}], fallbacks: [{fallback}]}}
          other: {{deployments: [{{upstream: openai}}]}}
          claude: {{deployments: [{{upstream: anthropic}}]}}
        '''

        def ask(url, path, model):
            body = json.dumps({{"model": model, "max_tokens": 5, "messages": [{{"role": "user", "content": "hi"}}]}})
            headers = {{"content-type": "application/json"}}
            urllib.request.urlopen(urllib.request.Request(url + path, body.encode(), headers)).read()

        async def main():
            async with MockProvider() as provider:
                app = create_app(parse_config(CONFIG.replace("URL", provider.url), "f.yaml", {{}}))
                await app.start()
                for path, model in (("/v1/chat/completions", "gpt"), ("/v1/messages", "claude")):
                    await asyncio.to_thread(ask, app.addresses[0], path, model)
                await app.stop()

        asyncio.run(main())
        print(*[name for name in sys.modules if "translation" in name or "forms" in name])
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    return set(ran.stdout.split("\n")[-2].split())


@pytest.mark.parametrize(("fallback", "is_loaded"), [("other", False), ("claude", True)])
def test_translation_is_loaded_for_a_config_that_mixes_dialects_alone(fallback: str, is_loaded: bool) -> None:
    found = loaded(fallback)
    assert ("llm_guard.dialects.translation" in found) is is_loaded
    assert "llm_guard.proxy.translation.interfaces" in found
    assert is_loaded or "llm_guard.dialects.forms" not in found
