"""Counted instructions: what is read from callgrind's profiles, and how it is divided by calls and steps."""

from __future__ import annotations

import pytest

from benchmarks.callgrind import parse
from benchmarks.instructions import lines, sum_up

PROFILE = """# callgrind format
version: 1
positions: line
events: Ir
summary: 1000

ob=(1) /lib/handler.cpython-311-x86_64-linux-gnu.so
fl=(1) handler.c
fn=(1) __pyx_f_9llm_guard_5proxy_7handler_7Handler__take
10 100
cob=(2) /lib/libpython3.11.so.1.0
cfi=(2) obmalloc.c
cfn=(2) _PyObject_Malloc
calls=4 +3
+1 600

ob=(2)
fn=(2)
20 600

fn=(3) main
cob=(1)
cfn=(1)
calls=2 10
30 700
cfn=(4) main'2
calls=1 0
* 50
31 100

fn=(4)
32 50
cfn=(2)
calls=0 1
33 20
"""


def test_costs_of_calls_are_those_of_the_callee() -> None:
    found = parse(PROFILE)
    assert found.objects == {"handler": 100, "libpython3": 750}
    assert found.total == 850
    assert found.calls["_PyObject_Malloc"] == 4
    assert found.costs["_PyObject_Malloc"] == 620


def test_call_of_a_function_by_itself_costs_nothing_more() -> None:
    assert "main" not in parse(PROFILE).costs


def test_other_text_is_no_profile() -> None:
    with pytest.raises(ValueError, match="events: Ir"):
        parse("events: Dr\n")


def test_report_divides_by_calls_and_leaves_out_work_in_the_background() -> None:
    counted = sum_up(parse(PROFILE), calls=2, background=50.0)
    assert counted.net == 400.0
    assert counted.steps["its body is read"] == 350.0
    assert counted.steps["the call is counted"] == 0.0
    assert counted.counts["objects allocated"] == 2.0
    shown = list(lines(counted, most=1))
    assert shown[0] == "400 instructions per call"
    assert "     350  its body is read" in shown
    assert "     375  libpython3" in shown
    assert not any("the call is counted" in line or "handler" in line for line in shown)
