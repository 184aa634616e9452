"""A public class has a name of its own, and names that were replaced by the field's terms do not come back."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "llm_guard"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Paths of the first layout, relative to the package, without `.py`. A folder stands for everything in it.
OLD_MODULES = (
    "call", "demo", "deployment", "dialect", "errands", "explain", "gateway", "health", "ops", "policy", "pool",
    "reloads", "routes", "store", "config/lasting", "config/reading", "config/shown", "config/strict", "config/text",
    "config/trying", "mock/course", "mock/going_on", "mock/shelf",
)  # fmt: skip

# Classes that are now called, for example, Disposition, Lease, QueueGrant, WaitQueue, Cooldowns and AttemptRunner.
OLD_CLASSES = frozenset({
    "Again", "Apart", "Asked", "Asker", "Bench", "Benched", "Beside", "Beyond", "Controls", "DeskKeeper", "Entrance",
    "Errands", "Fate", "FirstResort", "Flight", "Following", "Foreseen", "Foresight", "Found", "Full", "GaveUp",
    "Itinerary", "Keeper", "Keeping", "Kept", "KeptCall", "KeptCalls", "KeptFile", "LastResort", "Lasting",
    "LaterSettings", "LaterStore", "Leave", "LetterPages", "LetterStore", "Letters", "LetterView", "Line", "Look",
    "Over", "Race", "Recent", "Record", "Seen", "Sent", "Served", "Shelf", "Shut", "Sight", "Signs", "Stop",
    "StreamWatch", "Tape", "Teller", "Tidings", "Told", "Tried", "Turn", "Waiting", "Way", "Why", "Window", "Wishes",
    "Word",
})  # fmt: skip

# Functions, attributes and variables that are now called, for example, notify_waiters, restore and dead_letter.
OLD_IDENTIFIERS = frozenset({
    "_OUT_OF_PLACE", "_leave_out", "_pass_over", "asked_of", "bury", "errand_for", "foresee", "give_promise",
    "has_answered", "insist", "is_cut_short", "kept_call", "let_in", "lift_patience", "look_at", "look_now", "manner",
    "on_patience", "sight_of", "stand_in", "take_up", "thrown_away", "true_for_all", "try_look", "untold", "wait_looks",
    "wishes_of", "withheld", "CLIENT_LEFT",
})  # fmt: skip


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def public_classes(path: Path) -> Iterator[str]:
    """Yields the public classes, protocols and type aliases that a module defines. An alias is capitalised like a
    class: `Seconds = Annotated[...]`."""
    for statement in tree(path).body:
        match statement:
            case ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if name[0].isupper() and not name.isupper())


def identifiers(path: Path) -> Iterator[str]:
    """Yields every name, attribute, parameter and definition of a module."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case _:
                pass


def shared_names(paths: list[Path]) -> dict[str, list[str]]:
    """Returns the public class names that more than one module defines, with these modules."""
    definers = defaultdict(list)
    for path in paths:
        for name in dict.fromkeys(public_classes(path)):
            definers[name].append(path.name)
    return {name: modules for name, modules in definers.items() if len(modules) > 1}


def test_no_two_modules_define_a_public_class_of_the_same_name() -> None:
    assert sum(1 for path in SOURCES for _ in public_classes(path)) > 500
    assert shared_names(SOURCES) == {}


@pytest.mark.parametrize(
    "definition", ["class Found: ...", "Found = tuple[str, str]", "Found: TypeAlias = tuple[str, str]"]
)
def test_shared_name_is_found_in_each_form_of_definition(definition: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Found: ...\n_Found = 1\nFOUND = 2\n")
    (tmp_path / "two.py").write_text(f"{definition}\nFOUND = 3\n")
    assert shared_names(sorted(tmp_path.iterdir())) == {"Found": ["one.py", "two.py"]}


@pytest.mark.parametrize("old", OLD_MODULES)
def test_old_module_is_gone(old: str) -> None:
    place = PACKAGE / old
    assert not place.with_suffix(".py").exists()
    assert not any(place.rglob("*.py"))


def test_old_names_are_gone() -> None:
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in SOURCES
        if (
            names := {*OLD_CLASSES.intersection(public_classes(path)), *OLD_IDENTIFIERS.intersection(identifiers(path))}
        )
    }
    assert found == {}
