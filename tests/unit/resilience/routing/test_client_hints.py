from __future__ import annotations

import pytest

from llm_guard.resilience.routing.client_hints import decide_within_s, is_local, is_loopback, patience_s, retry_count

READ, WHOLE, RETRY = "x-stainless-read-timeout", "x-stainless-timeout", "x-stainless-retry-count"


@pytest.mark.parametrize("name", [READ, WHOLE])
@pytest.mark.parametrize(("said", "seconds"), [("600", 600.0), ("600.0", 600.0), ("0.3", 0.3), ("1", 1.0)])
def test_client_timeout_is_the_value_of_its_header(name: str, said: str, seconds: float) -> None:
    assert patience_s({name: said}) == seconds


@pytest.mark.parametrize("name", [READ, WHOLE])
@pytest.mark.parametrize(
    "said", ["NOT_GIVEN", "None", "0", "0.0", "-5", "nan", "inf", "-inf", "1e999", "", "soon", "5s", "Timeout(read=5)"]
)
def test_useless_value_leaves_the_client_timeout_unknown(name: str, said: str) -> None:
    assert patience_s({name: said}) is None


def test_client_without_the_headers_has_no_timeout() -> None:
    assert patience_s({"timeout": "5", "x-stainless-lang": "python"}) is None


@pytest.mark.parametrize(
    ("read", "whole", "seconds"),
    [("5", "60", 5.0), ("60", "5", 5.0), ("60", "NOT_GIVEN", 60.0), ("None", "5", 5.0), ("5", "0", 5.0)],
)
def test_shorter_of_two_waits_counts_and_nonsense_does_not(read: str, whole: str, seconds: float) -> None:
    assert patience_s({READ: read, WHOLE: whole}) == seconds


@pytest.mark.parametrize(
    ("patience", "within"),
    [
        (600.0, 599.0),  # minus at most a second
        (10.0, 9.0),
        (5.0, 4.5),  # minus a tenth
        (1.0, 0.9),
        (0.3, 0.2),  # minus at least 100 ms
        (0.2, 0.1),
        (0.02, 0.01),  # half, where 100 ms would leave nothing
    ],
)
def test_response_is_due_shortly_before_the_client_gives_up(patience: float, within: float) -> None:
    assert decide_within_s(patience) == pytest.approx(within)


@pytest.mark.parametrize("patience", [1e-9, 0.001, 0.07, 0.99, 7.0, 1e6, 1e300])
def test_response_is_always_due_after_some_time_and_before_the_client_gives_up(patience: float) -> None:
    assert 0 < decide_within_s(patience) <= patience


@pytest.mark.parametrize(("said", "count"), [("0", 0), ("1", 1), ("2", 2), ("10", 10), ("999", 999)])
def test_count_of_a_clients_own_retries_is_read(said: str, count: int) -> None:
    assert retry_count({RETRY: said}) == count


@pytest.mark.parametrize("said", ["", "-1", "1.0", "one", "٣", "²", "1000", "9" * 5000, " 1"])
def test_count_that_no_sdk_sends_is_none(said: str) -> None:
    assert retry_count({RETRY: said}) == 0


def test_call_without_a_count_is_the_first() -> None:
    assert retry_count({}) == 0


def test_invalid_address_is_not_this_machine() -> None:
    assert not any(map(is_loopback, (None, "", "localhost", "127.0.0.1.example", "0.0.0.0")))
    assert is_loopback("127.8.9.1")


@pytest.mark.parametrize(("peer", "version", "names", "is_here"), [
    ("127.0.0.1", "1.1", ("host", "content-type"), True), ("::1", "1.1", (), True),
    ("::ffff:127.0.0.1", "1.1", (), True), ("203.0.113.7", "1.1", (), False), (None, "1.1", (), False),
    ("127.0.0.1", "1.0", (), False), ("127.0.0.1", "1.1", ("x-forwarded-for",), False),
    ("127.0.0.1", "1.1", ("host", "forwarded"), False), ("127.0.0.1", "1.1", ("via",), False),
])  # fmt: skip
def test_client_of_a_proxy_on_this_machine_is_not_on_it(
    peer: str | None, version: str, names: tuple[str, ...], is_here: bool
) -> None:
    assert is_local(peer, version, names) is is_here
