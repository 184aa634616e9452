"""A gateway that has keys, its own, its clients' and its operator's: each unlike anything else, to be found anywhere.

Owns the keys and the stand that holds them. Does not own where they are looked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.chaos.stand import Section, config_of, standing
from tests.security.stand import Answer, Front, Recorder, usual_answer

UPSTREAM_KEY = "sk-CANARY-upstream-7f3a9c"
CLIENT_KEY = "sk-CANARY-client-51be02"
OPS_TOKEN = "CANARY-ops-token-c04d7e"
STRANGERS_KEY = "AIzaCANARY-stranger-99aa10"
"""Of a caller whom the gateway does not know. Not every provider's keys begin with sk-."""
DOOR = {"client_keys": [{"name": "app", "key": CLIENT_KEY}]}


@asynccontextmanager
async def keyed(answer: Answer = usual_answer, *, is_open: bool = True, **sections: Section) -> AsyncIterator[Front]:
    """A gateway before a recording provider that it has a key for; `is_open`: anybody may call."""
    async with Recorder(answer) as provider:
        own = {"one": {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": UPSTREAM_KEY}}
        server = {**({} if is_open else DOOR), **sections.pop("server", {})}
        config = config_of(provider.url, upstreams=own, server=server, ops={"token": OPS_TOKEN}, **sections)
        async with standing(config) as stand:
            yield Front(stand, provider)
