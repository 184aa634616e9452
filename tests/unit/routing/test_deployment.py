from __future__ import annotations

from dataclasses import replace

from llm_guard.config import AwsSettings, GoogleSettings
from llm_guard.resilience.capacity.gate import RAMP_START, CapacitySettings
from llm_guard.routing.deployment import Gates, Upstream
from tests.fakes.script import new_target

FREE = CapacitySettings(pacing=False)
NARROW = CapacitySettings(pacing=False, concurrency=1)


def test_each_account_has_a_gate_of_its_own_where_calls_at_once_are_not_limited() -> None:
    gates = Gates(FREE)
    alice, bob = gates.of("alice", 0.0), gates.of("bob", 0.0)
    assert alice is not bob
    assert gates.of("alice", 1.0) is alice
    alice.pause_until(10.0)
    assert (alice.try_enter(1.0), bob.try_enter(1.0) is not None) == (None, True)


def test_limit_of_calls_at_once_has_one_gate_for_all_accounts() -> None:
    gates = Gates(NARROW)
    assert gates.of("alice", 0.0) is gates.of("bob", 0.0)
    assert gates.of("alice", 0.0).try_enter(0.0) is not None
    assert gates.of("bob", 0.0).try_enter(0.0) is None


def test_learned_limit_has_one_gate_for_all_accounts_too() -> None:
    gates = Gates(CapacitySettings(concurrency="adaptive"))
    assert gates.of("alice", 0.0) is gates.of("bob", 0.0)


def test_least_recently_seen_account_restarts_after_1024_others() -> None:
    gates = Gates(FREE)
    kept, forgotten = gates.of("kept", 0.0), gates.of("forgotten", 0.0)
    for number in range(1022):
        gates.of(str(number), 0.0)
    gates.of("kept", 1.0)
    gates.of("one more", 1.0)
    assert len(gates.all()) == 1024
    assert gates.of("kept", 2.0) is kept
    assert gates.of("forgotten", 2.0) is not forgotten
    assert len(gates.all()) == 1024


def test_new_settings_apply_to_existing_and_future_gates() -> None:
    gates = Gates(NARROW)
    gate = gates.of("alice", 0.0)
    assert gate.try_enter(0.0) is not None
    gates.adopt(CapacitySettings(pacing=False, concurrency=2))
    assert gate.try_enter(0.0) is not None
    assert gate.try_enter(0.0) is None
    gates.adopt(FREE)
    assert gates.of("alice", 0.0) is not gate
    assert gate.settings == FREE


def test_after_an_outage_calls_return_gradually_at_all_gates() -> None:
    gates = Gates(FREE)
    both = gates.of("alice", 0.0), gates.of("bob", 0.0)
    gates.ramp(0.0, 10.0)
    for gate in both:
        assert [gate.try_enter(1.0) is not None for _ in range(RAMP_START + 1)] == [True] * RAMP_START + [False]
        assert gate.try_enter(10.0) is not None


def test_streams_are_measured_to_their_first_token_and_all_else_to_the_end() -> None:
    deployment = new_target().deployment
    assert deployment.latency_of(True) is deployment.first_tokens
    assert deployment.latency_of(False) is deployment.latency


def test_credential_is_the_upstreams_own_key_and_another_after_it_was_replaced() -> None:
    deployment = new_target("a/x", api_key="sk-1").deployment
    upstream = replace(deployment.upstream, api_key="sk-2")
    assert deployment.credential is not None
    assert deployment.credential != replace(deployment, upstream=upstream).credential
    assert "sk-1" not in repr(deployment.credential)
    assert new_target("a/x").deployment.credential is None


# upstreams

CLOUD = Upstream("a", "openai", "https://h/v1", None, "google", cloud=GoogleSettings())
PLAIN = Upstream("a", "openai", "https://h/v1", "key", "bearer")
QUERIED = replace(PLAIN, query=(("v", "1"),))


def test_link_has_a_mark_for_requests_that_are_authorised_on_their_way() -> None:
    others = [
        replace(CLOUD, cloud=GoogleSettings(scopes=("s",))), replace(CLOUD, query=(("v", "1"),)), QUERIED,
        replace(QUERIED, query=(("v", "2"),)),
    ]  # fmt: skip
    links = {upstream.link for upstream in (PLAIN, CLOUD, *others)}
    assert len(links) == 6
    assert {upstream.connections for upstream in (PLAIN, CLOUD, *others)} == {"https://h"} == {PLAIN.link}
    assert all(link.startswith("https://h @") for link in links - {PLAIN.link})
    assert replace(CLOUD, has_own_tls=True).link.startswith("https://h a @")
    assert replace(CLOUD).link == CLOUD.link


def test_secret_parameter_is_not_in_the_link() -> None:
    assert "secret" not in replace(PLAIN, query=(("key", "secret"),)).link


def test_upstream_with_credentials_of_a_cloud_takes_no_other_key() -> None:
    assert CLOUD.has_own_key
    assert CLOUD.secret is None
    assert CLOUD.own_credentials() == {CLOUD.credential(CLOUD.key_digest): ""}
    assert CLOUD.may_use(CLOUD.key_digest)
    assert not CLOUD.may_use("of a caller")
    assert CLOUD.key_digest != replace(CLOUD, cloud=GoogleSettings(scopes=("s",))).key_digest


def test_only_aws_needs_the_whole_body_before_the_head() -> None:
    assert replace(CLOUD, auth="aws", cloud=AwsSettings(region="r", service="s")).signs_bodies
    assert not CLOUD.signs_bodies
    assert not PLAIN.signs_bodies
