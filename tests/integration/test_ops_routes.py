"""The routes, and the source of each key of the config, as the admin API shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.chaos.stand import config_of, config_text, standing
from tests.chaos.wire import ask
from tests.integration.operating import HERE, change, get, running

URL = "http://127.0.0.1:9"
KEY = "sk-SHOWN-0123456789"
ONE = {"dialect": "openai", "base_url": f"{URL}/v1", "api_key": KEY}
SPARE = {"deployments": [{"upstream": "one", "model": "spare"}], "fallbacks": ["last"]}
MODELS: dict[str, Any] = {
    "gpt": {
        "deployments": [{"upstream": "one", "model": "far", "priority": 1}, {"upstream": "one", "weight": 3}],
        "fallbacks": ["spare", "gpt-4o"],
        "timeout": {"total": "7s"},
    },
    "spare": SPARE,
    "last": {"deployments": [{"upstream": "one", "model": "spare"}, {"upstream": "one", "model": "last"}]},
    "gpt-*": {"deployments": [{"upstream": "one"}]},
}


async def test_routes_list_deployments_and_fallbacks_in_the_order_in_which_they_are_tried() -> None:
    async with standing(config_of(URL, upstreams={"one": ONE}, models=MODELS)) as stand:
        routes = {route["model"]: route for route in await get(stand.url, "routes")}
    assert routes.keys() == {"gpt", "claude", "spare", "last", "gpt-*"}
    steps = [(step["model"], step["entry"], step["deployments"]) for step in routes["gpt"]["steps"]]
    assert [(model, entry, [each["deployment"] for each in tried]) for model, entry, tried in steps] == [
        ("gpt", "gpt", ["one/gpt", "one/far"]),
        ("spare", "spare", ["one/spare"]),
        ("last", "last", ["one/last"]),
        ("gpt-4o", "gpt-*", ["one/gpt-*"]),
    ]
    assert steps[0][2][0] == {"deployment": "one/gpt", "priority": 0, "weight": 3.0}
    assert (routes["gpt"]["balance"], len(routes["gpt-*"]["steps"])) == ("order", 1)


async def test_keys_have_their_lines_before_and_after_a_reload(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    text = json.dumps(json.loads(config_text(URL, upstreams={"one": ONE}, models=MODELS)), indent=1)
    path.write_text(text)
    async with running(path) as stand:
        assert await source(stand.url, path, text) == (7.0, "models.gpt.timeout.total")
        text = "\n\n" + text.replace('"7s"', '"8s"')
        path.write_text(text)
        await change(stand.url, "config/reload")
        assert await source(stand.url, path, text) == (8.0, "models.gpt.timeout.total")
        found = await get(stand.url, "config/keys?upstream=one&model=gpt")
        assert found["keys"][0]["key"] == "upstreams.one.dialect"
        keys = {key["key"]: key for key in found["keys"]}
        assert keys["upstreams.one.api_key"]["value"] == "***"
        assert keys["models.gpt.retry.max_attempts"]["set_by"] == "defaults.retry.max_attempts"
        assert KEY not in json.dumps(found)


async def source(url: str, path: Path, text: str) -> tuple[float, str]:
    """Returns value and key of a timeout, after a check that its line in the text is the right one."""
    found = await get(url, "config/keys?model=gpt")
    key = next(each for each in found["keys"] if each["key"] == "models.gpt.timeout.total")
    assert (found["source"], found["problem"], key["origin"]) == (str(path), None, "file")
    assert f'"total": "{key["value"]:.0f}s"' in text.splitlines()[key["line"] - 1]
    return key["value"], key["set_by"]


async def test_without_a_name_the_keys_of_the_sections_without_entries_are_returned() -> None:
    async with standing(config_of(URL)) as stand:
        found = await get(stand.url, "config/keys")
        sections = {key["key"].partition(".")[0] for key in found["keys"]}
        assert sections == {"server", "ops", "store", "probes", "defaults"}
        assert (found["source"], found["problem"]) == (None, "the config did not come from a file")


async def test_unknown_name_is_not_found() -> None:
    async with standing(config_of(URL)) as stand:
        for query, message in (("model=none", "models has no entry none"), ("upstream=x", "upstreams has no entry x")):
            reply = await ask(stand.url, f"/admin/config/keys?{query}", headers=HERE, method="GET")
            assert (reply.status, reply.json["error"]["message"]) == (404, message)
