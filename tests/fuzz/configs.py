"""Fuzz harness for the config loader."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llm_guard.config import Config, ConfigError, ConfigProblem, parse_config
from tests.fuzz.mutation import rolled

SECRET = "sk-5ecret-5ecret-5ecret"
MOST_CPU_S = 20.0
"""Processor seconds: 64 kB of YAML take a second or two in pure Python; an expanded alias bomb never ends."""

_NAMING = ("falls back to itself", "another client is named", "is the key of")
"""Problems that quote names of models and clients, which hold no secrets of variables."""


def fuzz_config(data: bytes) -> None:
    """A text is either a valid config or an error with a line number and without the environment's secrets."""
    dice, raw = rolled(data)
    text = raw.decode("utf-8", "replace")
    env = {
        "KEY": SECRET, "OTHER": dice.choice((SECRET, SECRET + "\n: x", "m", "")), "HOST": dice.choice(("h", SECRET)),
        "PORT": dice.choice(("8080", "0", SECRET)), "TIME": dice.choice(("3s", SECRET)),
        "NUMBER": dice.choice(("2", SECRET, "9" * 5000, "1e999")),
    }  # fmt: skip
    begun = time.thread_time()
    config, problems = _read(text, env)
    assert time.thread_time() - begun < MOST_CPU_S
    if config is not None:
        assert config.models
        assert SECRET not in repr(config.server)
        return
    said = "\n".join(map(str, problems))
    assert SECRET not in said or SECRET in text or any(name in said for name in _NAMING)
    assert len(said.splitlines()) == len(problems) > 0
    for problem in problems:
        assert problem.reason
        assert 0 <= problem.line <= text.count("\n") + text.count("\r") + 10


def _read(text: str, env: dict[str, str]) -> tuple[Config | None, Sequence[ConfigProblem]]:
    try:
        return parse_config(text, "f.yaml", env), ()
    except ConfigError as error:
        return None, error.problems
