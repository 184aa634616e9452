"""The digests of a fleet in tests. Deriving them takes as long as several tests."""

from __future__ import annotations

from llm_guard.fleet.names import FleetNames

NAMES = FleetNames("token of a fleet in tests")
