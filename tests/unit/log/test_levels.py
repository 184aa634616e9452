"""The minimum level of log lines, by logger name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from types import SimpleNamespace

import pytest
import structlog

from llm_guard.log import ACCESS_LOGGER, BREAKER_LOGGER, LEVELS, Levels, configure_logging, is_logger


@pytest.fixture
def levels() -> Levels:
    return Levels()


def test_nearest_name_above_counts(levels: Levels) -> None:
    levels.adopt("warning", {"llm_guard.proxy": "error", BREAKER_LOGGER: "debug"})
    assert levels.of(BREAKER_LOGGER) == "debug"
    assert levels.of("llm_guard.proxy.handler") == "error"
    assert levels.of(ACCESS_LOGGER) == "warning"
    assert levels.of("llm_guard.admin.http.router") == "warning"
    assert levels.of("llm_guard.proxying") == "warning"


def test_override_outranks_the_config_on_the_same_name_and_outlives_a_reload(levels: Levels) -> None:
    levels.adopt("info", {BREAKER_LOGGER: "error"})
    levels.override(BREAKER_LOGGER, "debug")
    levels.override("", "critical")
    levels.adopt("warning", {BREAKER_LOGGER: "warning"})
    assert (levels.of(BREAKER_LOGGER), levels.of("llm_guard.app")) == ("debug", "critical")
    levels.override(BREAKER_LOGGER, None)
    levels.override("", None)
    assert (levels.of(BREAKER_LOGGER), levels.of("llm_guard.app")) == ("warning", "warning")


def test_override_that_was_never_set_can_be_removed(levels: Levels) -> None:
    levels.override(BREAKER_LOGGER, None)
    assert levels.of(BREAKER_LOGGER) == "info"


def test_threshold_follows_every_change(levels: Levels) -> None:
    threshold = levels.threshold(BREAKER_LOGGER)
    assert threshold.level == 20
    levels.override("llm_guard", "error")
    assert threshold.level == 40
    levels.adopt("debug", {})
    assert threshold.level == 40
    levels.override("llm_guard", None)
    assert threshold.level == 10
    assert levels.threshold(BREAKER_LOGGER) is threshold


@pytest.mark.parametrize(
    "name", ["", "llm_guard", "llm_guard.proxy", ACCESS_LOGGER, BREAKER_LOGGER, "llm_guard.admin", "llm_guard.app"]
)
def test_stable_loggers_modules_and_packages_are_loggers(name: str) -> None:
    assert is_logger(name)


@pytest.mark.parametrize(
    "name",
    ["llm_guard.proxi", "asyncio", "llm_guard.", ".", "llm_guard..admin", "llm_guard/admin", "llm_guard.py.typed"],
)
def test_non_module_is_no_logger(name: str) -> None:
    assert not is_logger(name)


@pytest.fixture
def stdout(monkeypatch: pytest.MonkeyPatch) -> Iterator[BytesIO]:
    stdout = BytesIO()
    fake = SimpleNamespace(buffer=stdout, isatty=lambda: False)
    monkeypatch.setattr("llm_guard.log.writer.sys", SimpleNamespace(stdout=fake))
    yield stdout
    structlog.reset_defaults()
    LEVELS.adopt("info", {})
    LEVELS.override(BREAKER_LOGGER, None)


def test_line_below_the_level_of_its_logger_is_not_written_until_the_level_changes(stdout: BytesIO) -> None:
    writer = configure_logging()
    log = structlog.get_logger(BREAKER_LOGGER)
    log.debug("one")
    LEVELS.adopt("info", {BREAKER_LOGGER: "debug"})
    log.debug("two")
    LEVELS.override(BREAKER_LOGGER, "error")
    log.warning("three")
    log.error("four")
    structlog.get_logger("llm_guard.app").info("five")
    writer.close()
    lines = [json.loads(line) for line in stdout.getvalue().splitlines()]
    assert [(line["event"], line["logger"]) for line in lines] == [
        ("two", BREAKER_LOGGER), ("four", BREAKER_LOGGER), ("five", "llm_guard.app"),
    ]  # fmt: skip
