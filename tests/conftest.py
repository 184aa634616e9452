"""Fixtures of every test: fails the test if the gateway puts one of the test keys into its own output (see
`tests.sweep`), and keeps state out of the developer's home directory."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest
import trustme

from tests.effort import repeated
from tests.hypothesis_draws import without_constants_of_modules
from tests.sweep import SWEEP, listen

# Nothing that is collected is garbage: a third of the time that each worker takes to collect 15,000 tests.
gc.disable()

listen(SWEEP)

# Results must not depend on how fast or how busy the machine is, nor on which tests ran before.
without_constants_of_modules()
hypothesis.settings.register_profile(
    "any machine",
    max_examples=repeated(100),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any machine")

_KEPT = tempfile.mkdtemp(prefix="llm-guard-tests-")
_NUMBERS = itertools.count()
os.environ["XDG_STATE_HOME"] = _KEPT
# No test trusts the system's certificates. Each gateway process and each client of an SDK would read all of them.
os.environ["SSL_CERT_FILE"] = f"{_KEPT}/certificate.pem"
trustme.CA().cert_pem.write_to_path(os.environ["SSL_CERT_FILE"])
atexit.register(shutil.rmtree, _KEPT, ignore_errors=True)


def pytest_collection_finish() -> None:
    gc.freeze()  # else each full collection, and the end of each worker, looks at 15,000 tests
    gc.set_threshold(20_000, 20, 100)  # as seldom as in a gateway that serves: a twentieth of the tests' time
    gc.enable()


@pytest.fixture(autouse=True)
def _no_key_leaks() -> Iterator[None]:
    os.environ["XDG_STATE_HOME"] = f"{_KEPT}/{next(_NUMBERS)}"
    SWEEP.take()
    yield
    found = SWEEP.take()
    assert not found, found[:3]
