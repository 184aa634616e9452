"""Every mutant of the catalogue fails its killer, and the killers pass without it."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, catalogue, definitions, mutants
from tests.mutants.stand import DOES_NOT_RUN, Stand, standing

MUTANTS = catalogue()
BREAKER_WALK = "property/test_breaker.py::test_breaker_holds_on_every_walk"
BUDGET_WALK = "property/test_retry_budget.py::test_budget_holds_on_every_walk"
GATE_WALK = "property/test_gate.py::test_gate_holds_on_every_walk"
LIMIT_LAW = "property/test_concurrency_limit.py::test_limit_moves_by_the_law_and_within_its_bounds"

KILLERS: dict[str, list[str]] = defaultdict(list)
for each in MUTANTS:
    if each.killer not in KILLERS[file := each.killer.partition("::")[0]]:
        KILLERS[file].append(each.killer)

each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with standing() as stand:
        yield stand


@pytest.fixture(scope="module")
def warm_stand() -> Iterator[Stand]:
    with standing(is_warm=True) as stand:
        yield stand


@each_mutant
def test_mutant_is_killed(mutant: Mutant, stand: Stand, warm_stand: Stand) -> None:
    is_warm = mutant.is_in_function and not mutant.module.startswith("resilience.")
    verdict = (warm_stand if is_warm else stand).run([mutant.killer], mutant)
    assert verdict.exit_code != 0, f"{mutant.name}: survives {mutant.killer}"
    assert verdict.exit_code == 1, f"{mutant.name}: the killer could not judge it\n{verdict.output}"
    assert verdict.failed, f"{mutant.name}: no test ran\n{verdict.output}"
    broken = [line for line in verdict.failed if line.startswith(("NameError", "AttributeError", "TypeError"))]
    assert not broken, f"{mutant.name}: it is not wrong, it does not work"


@pytest.mark.parametrize("file", sorted(KILLERS))
def test_killers_pass_without_a_mutant(file: str, warm_stand: Stand) -> None:
    verdict = warm_stand.run(KILLERS[file])
    assert verdict.exit_code == 0, verdict.output


def test_mutants_differ_from_the_original() -> None:
    same = [mutant.name for mutant in MUTANTS if mutant.source() == mutant.path.read_text()]
    assert not same


def test_mutants_are_distinct() -> None:
    twice = [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]
    assert not twice


@pytest.mark.parametrize(
    ("walk", "modules", "least"),
    [
        (
            BREAKER_WALK,
            {
                "resilience.circuit_breaker.breaker",
                "resilience.circuit_breaker.open_duration",
                "resilience.circuit_breaker.opening_rules",
            },
            15,
        ),
        (BUDGET_WALK, {"resilience.retry.limits"}, 5),
        (GATE_WALK, {"resilience.capacity.gate", "resilience.capacity.wait_queue"}, 5),
        (LIMIT_LAW, {"resilience.capacity.gate", "resilience.capacity.adaptive_limit"}, 3),
    ],
)
def test_walks_that_are_not_in_the_catalogue_kill_too(walk: str, modules: set[str], least: int) -> None:
    assert sum(mutant.killer == walk and mutant.module in modules for mutant in MUTANTS) >= least


# The stand itself

SLOWER = Mutant(
    "resilience.retry.limits",
    "fades more slowly",
    "FADE_S",
    "FADE_S = 15.0",
    "FADE_S = 16.0",
    "unit/resilience/retry/test_limits.py",
)


def test_change_that_matters_is_killed_and_one_that_does_not_survives(stand: Stand) -> None:
    killed = stand.run([SLOWER.killer], SLOWER)
    assert (killed.exit_code, len(killed.failed)) == (1, 1)
    assert "test_limits.py::" in killed.failed[0]
    assert stand.run([SLOWER.killer], replace(SLOWER, new="FADE_S = 15.00")).exit_code == 0


@pytest.mark.parametrize("new", ["FADE_S = (", "FADE_S = MEMORY_S", "import llm_guard.resilience.retry.nothing"])
def test_mutant_that_cannot_be_imported_is_no_kill(new: str, stand: Stand) -> None:
    verdict = stand.run([SLOWER.killer], replace(SLOWER, new=new))
    assert (verdict.exit_code, verdict.failed) == (DOES_NOT_RUN, [])


@pytest.mark.parametrize(
    "killer", ["unit/resilience/retry/test_nothing.py", "unit/resilience/retry/test_limits.py::test_nothing"]
)
def test_killer_that_does_not_exist_is_no_kill(killer: str, stand: Stand) -> None:
    verdict = stand.run([killer], SLOWER)
    assert verdict.exit_code not in (0, 1)
    assert not verdict.failed


def test_mutant_of_a_package_replaces_the_package(stand: Stand) -> None:
    broken = Mutant("config.__init__", "cannot be imported", "__all__", "__all__", "import llm_guard.nothing", "unit")
    assert stand.run(["unit/config/test_config.py"], broken).exit_code == DOES_NOT_RUN


@pytest.mark.parametrize(
    ("where", "old", "places"),
    [
        ("FADE_S", "FADE_S = 14.0", 0),
        ("FailureRate", "self._noted_at = now", 3),
        ("FailureRate.note", "FADE_S = 15.0", 0),
        ("FailureRate.nothing", "now", 0),
    ],
)
def test_old_text_must_occur_once_in_its_definition(where: str, old: str, places: int) -> None:
    with pytest.raises(ValueError, match=f"fades more slowly: {places} places in {where} of limits.py"):
        replace(SLOWER, where=where, old=old).source()


SOURCE = """
class Gate:
    @property
    def width(self) -> int:
        return 1

    @width.setter
    def width(self, value: int) -> None:
        self._width = min(
            value,
            9,
        )
"""


def test_definition_is_found_by_its_qualified_name() -> None:
    found = [SOURCE[start:end].split()[1] for start, end in definitions(SOURCE, "Gate.width")]
    assert found == ["width(self)", "width(self,"]
    assert len(definitions(SOURCE, "Gate")) == 1
    assert not definitions(SOURCE, "width")


def test_mutant_survives_a_move_and_another_formatting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.mutants.mutant.PACKAGE", tmp_path)
    mutant = Mutant("gate", "has no bound", "Gate.width", "self._width = min(value, 9,)", "if value:\n    pass", "k")
    for moved in (SOURCE, f"X = 1\n{SOURCE}", SOURCE.replace("        ", "            ")):
        (tmp_path / "gate.py").write_text(moved)
        ast.parse(mutant.source())
        assert "min" not in mutant.source()


def test_catalogue_is_read_line_by_line() -> None:
    text = "# one\n@ f\n- a\n-     b\n+ c\n! k\n\n# two\n@ g\n- d\n! k\n"
    assert list(mutants("x", text)) == [
        Mutant("x", "one", "f", "a\n    b", "c", "k"),
        Mutant("x", "two", "g", "d", "", "k"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "# one\n@ f\n- a\n+ b",
        "# one\n@ f\n+ b\n! k",
        "# one\n- a\n+ b\n! k",
        "@ f\n- a\n+ b\n! k",
        "# one\n@ f\n- a\n b\n! k",
        "# one\n@ f\n- a \n! k",
        "#one",
    ],
)
def test_catalogue_with_a_hole_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="x: "):
        list(mutants("x", text))
