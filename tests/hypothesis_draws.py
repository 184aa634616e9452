"""Makes hypothesis draw the same examples whatever else has been imported.

By default it also draws constants from the source of all loaded modules of the project. So with `derandomize` a
property test still walked other ways when it ran alone, after other tests, or on another version of the code: it failed
in CI only, and a mutant survived there.
"""

from __future__ import annotations

from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants


def without_constants_of_modules() -> None:
    """Has no public setting: hypothesis keeps the constants in a private function (6.170)."""
    providers._get_local_constants = Constants
