"""Which requests of the admin API are made at all workers."""

from __future__ import annotations

import json

from llm_guard.app import create_app
from llm_guard.config import parse_config
from llm_guard.workers.admin_api import FOR_ALL, FOR_ONE, REFUSED
from tests.unit.workers.test_merging import CONFIG


async def test_each_request_that_changes_something_has_a_rule() -> None:
    app = create_app(parse_config(json.dumps(CONFIG), "test.yaml", {}))
    await app.start()
    try:
        changing = {page.path for page in app.ops._site.pages if page.method != "GET"}
    finally:
        await app.stop()
    assert changing == FOR_ALL | FOR_ONE | REFUSED
    assert len(changing) == len(FOR_ALL) + len(FOR_ONE) + len(REFUSED)
