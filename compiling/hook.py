"""The wheel that `make compiled` leaves in dist/: hatchling's, with what was compiled in it, for this Python alone.

Owns what is told to hatchling, and only when it is asked for: any other wheel is pure, and needs no compiler.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledHook(BuildHookInterface[Any]):
    """`HATCH_BUILD_HOOK_ENABLE_CUSTOM=true` asks for it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it packs."""
        if self.target_name != "wheel" or version != "standard":
            return
        sys.path.insert(0, self.root)  # a build does not begin in its own folder
        from compiling.build import build, extensions  # noqa: PLC0415  # only where a compiled wheel is built

        package = build(Path(self.root), Path(self.root) / "build" / "compiled", is_profiled=True)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= {str(package / each): str(each) for each in extensions(package)}
