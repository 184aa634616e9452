"""A gateway with a provider key, client keys and an admin token, each distinctive enough to be found anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.chaos.stand import Section, config_of, standing
from tests.security.stand import Answer, Front, Recorder, usual_answer

UPSTREAM_KEY = "sk-CANARY-upstream-7f3a9c"
CLIENT_KEY = "sk-CANARY-client-51be02"
OPS_TOKEN = "CANARY-ops-token-c04d7e"
STRANGERS_KEY = "AIzaCANARY-stranger-99aa10"
"""Key of a caller unknown to the gateway. Not every provider's keys begin with sk-."""
DOOR = {"client_keys": [{"name": "app", "key": CLIENT_KEY}]}


@asynccontextmanager
async def keyed(answer: Answer = usual_answer, *, is_open: bool = True, **sections: Section) -> AsyncIterator[Front]:
    """Runs a gateway with a key of its own for a recording provider; with `is_open`, any caller is admitted."""
    async with Recorder(answer) as provider:
        own = {"one": {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": UPSTREAM_KEY}}
        server = {**({} if is_open else DOOR), **sections.pop("server", {})}
        config = config_of(provider.url, upstreams=own, server=server, ops={"token": OPS_TOKEN}, **sections)
        async with standing(config) as stand:
            yield Front(stand, provider)
