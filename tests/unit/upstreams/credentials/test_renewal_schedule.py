from __future__ import annotations

import pytest

from llm_guard.upstreams.credentials.renewal_schedule import backoff_s, renewal_delay_s


@pytest.mark.parametrize(
    ("left_s", "lifetime_s", "u", "expected"),
    [
        (3600.0, 3600.0, 0.0, 2700.0),  # an hour's token, a quarter of an hour before its end
        (3600.0, 3600.0, 1.0, 2520.0),  # gateways that started together do not renew together
        (43_200.0, 43_200.0, 0.0, 42_300.0),
        (60.0, 60.0, 0.0, 45.0),
        (600.0, 3600.0, 0.0, 150.0),  # the cloud still returns the same
        (2.0, 3600.0, 0.0, 1.0),
        (0.1, 0.1, 0.0, 1.0),
        (None, 0.0, 0.0, 300.0),
        (None, 0.0, 1.0, 270.0),
    ],
)
def test_renewal_delay(left_s: float | None, lifetime_s: float, u: float, expected: float) -> None:
    assert renewal_delay_s(left_s, lifetime_s, u) == pytest.approx(expected)


def test_backoff_doubles_up_to_a_minute() -> None:
    assert [backoff_s(failures, 1.0) for failures in (1, 2, 3, 7, 8, 5000)] == [1.0, 2.0, 4.0, 60.0, 60.0, 60.0]
    assert backoff_s(3, 0.0) == 2.0
