"""The clients: the same load without a gateway, with the SDK's own retries, through llm_guard or another gateway."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scenarios.catalogue import Scenario
from llm_guard.mock.content import say
from llm_guard.mock.load import LoadPlan

STRAIGHT, SDK, GUARDED = "no gateway", "the SDK's retries", "llm_guard"
_SDK_RETRIES = 2
TOKENS = 8
"""Tokens in each of the provider's responses."""


@dataclass(frozen=True, slots=True)
class Client:
    """One path to the provider. Each client has a separate provider, so that none disturbs another."""

    name: str
    url: str
    """Base URL of its calls."""
    provider_url: str
    retries: int = 0

    @property
    def knows_no_gateway(self) -> bool:
        return self.url == self.provider_url

    def takes_part(self, scenario: Scenario) -> bool:
        """True unless the scenario's clients retry until they succeed, and this one has no retries."""
        return not self.knows_no_gateway or self.retries > 0 or scenario.clients_ask_for_s is None

    def plan(self, scenario: Scenario, model: str, seconds: float) -> LoadPlan:
        """The scenario's load; without a gateway the client itself applies the timeout of an attempt."""
        return LoadPlan(
            self.url,
            (model,),
            scenario.rate_per_s,
            seconds=seconds,
            concurrency=5000,
            stream=scenario.is_stream,
            timeout_s=scenario.limit_s if self.knows_no_gateway else scenario.patience_s,
            retries=self.retries,
            patience_s=scenario.clients_ask_for_s,
            text="".join(say(TOKENS)) if scenario.is_stream else None,
        )


def straight(provider_url: str) -> Client:
    """A client without retries."""
    return Client(STRAIGHT, provider_url, provider_url)


def with_sdk(provider_url: str) -> Client:
    """A client with the official SDKs' default retries."""
    return Client(SDK, provider_url, provider_url, _SDK_RETRIES)
