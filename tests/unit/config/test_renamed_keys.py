"""A config with an earlier name of a key: the error names the present one."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from llm_guard.config import ConfigError, parse_config
from llm_guard.config.models import Config
from llm_guard.config.renamed_keys import RENAMED
from tests.architecture.test_public_surface import config_keys

BASE = (
    "upstreams: {a: {dialect: openai, base_url: http://127.0.0.1:1/v1}}\nmodels: {m: {deployments: [{upstream: a}]}}\n"
)


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(BASE + text)
    return [str(problem) for problem in caught.value.problems]


def test_earlier_section_is_answered_with_its_present_name_and_those_of_its_keys() -> None:
    assert problems("store: {answer_later: {waiting: 5}}") == [
        (
            "config:3: store.answer_later: unknown key; it is called deferred now, "
            "and in it at_once is concurrency, keep is result_ttl, waiting is max_pending"
        )
    ]


def test_earlier_key_is_answered_with_its_present_name() -> None:
    text = "defaults:\n  capacity: {queue: 5}\n  deferred: {when: always}\nprobing: {}\n"
    assert problems(text) == [
        "config:4: defaults.capacity.queue: unknown key; it is called max_queue now",
        "config:5: defaults.deferred.when: unknown key; it is called mode now",
        "config:6: probing: unknown key; it is called probes now",
    ]


def test_key_of_a_list_and_that_of_a_model_are_found() -> None:
    text = """
upstreams: {a: {dialect: openai, base_url: "http://127.0.0.1:1/v1", errors: [{when: {status: 400}, means: auth}]}}
models: {m: {deployments: [{upstream: a}], stream: {waiting: {after: 1s}}}}
"""
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert {problem.reason for problem in caught.value.problems} == {
        "unknown key; it is called match now", "unknown key; it is called kind now", "is missing",
        "unknown key; it is called keepalive now, and in it after is interval, before_head is before_headers",
    }  # fmt: skip


def test_key_that_never_existed_is_answered_with_a_similar_one() -> None:
    assert problems("defaults: {capacity: {max_queu: 5}}") == [
        "config:3: defaults.capacity.max_queu: unknown key; did you mean max_queue?"
    ]


@pytest.mark.parametrize("pattern", RENAMED)
def test_present_name_exists_and_the_earlier_one_does_not(pattern: str) -> None:
    keys = {".".join(path[:end]) for key in config_keys(Config) for path in [key.split(".")] for end in range(1, 99)}
    listed = pattern.replace("errors.*.", "errors.")  # a list has no keys of its own
    parent, _, old = listed.rpartition(".")
    above = f"{parent}." if parent else ""
    assert any(fnmatchcase(key, f"{above}{RENAMED[pattern]}") for key in keys)
    assert not any(fnmatchcase(key, f"{above}{old}") for key in keys)
