"""Losses of one request: what the other dialect cannot express, and whether that may be dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

LossKind = Literal["same", "hint", "promise"]
"""`same`: nothing is lost. `hint`: no contract breaks without it. `promise`: the client relies on it."""


class Loss(Struct, frozen=True):
    """One thing that the other dialect cannot express."""

    name: str
    """Its name in the table, in headers and in `translate.drop`."""
    kind: LossKind
    place: str = ""
    """Path in the request, where the name does not say it."""

    def __str__(self) -> str:
        return f"{self.name} at {self.place}" if self.place else self.name


class Losses:
    """The losses of one request, each name once."""

    __slots__ = ("_found",)

    def __init__(self, found: dict[str, Loss] | None = None) -> None:
        self._found: dict[str, Loss] = {} if found is None else found

    def hint(self, name: str) -> None:
        if name not in self._found:
            self._found[name] = Loss(name, "hint")

    def promise(self, name: str, place: str = "") -> None:
        known = self._found.get(name)
        if known is None or known.kind != "promise":
            self._found[name] = Loss(name, "promise", place)

    def copy(self) -> Losses:
        return Losses(dict(self._found))

    def __iter__(self) -> Iterator[Loss]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)


def divided(losses: Losses, drop: str | tuple[str, ...]) -> tuple[list[Loss], tuple[str, ...]]:
    """Returns the losses because of which the request must not be sent, and the names of those that are dropped.

    `drop`: `hints`, `nothing`, or the names of promises that may be dropped besides all hints."""
    refused: list[Loss] = []
    dropped: list[str] = []
    for loss in losses:
        is_hint = loss.kind == "hint" and drop != "nothing"
        if is_hint or (not isinstance(drop, str) and loss.name in drop):
            dropped.append(loss.name)
        else:
            refused.append(loss)
    return refused, tuple(dropped)
