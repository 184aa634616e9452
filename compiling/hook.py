"""Build hook for the wheel that `make compiled` leaves in dist/: adds the compiled extensions, for this Python only.

Active only on request: any other wheel is pure, and needs no compiler.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledHook(BuildHookInterface[Any]):
    """Enabled by `HATCH_BUILD_HOOK_ENABLE_CUSTOM=true`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it packs."""
        if self.target_name != "wheel" or version != "standard":
            return
        sys.path.insert(0, self.root)  # the build may run in another folder
        from compiling.build import build, extensions  # noqa: PLC0415  # only for a compiled wheel

        package = build(Path(self.root), Path(self.root) / "build" / "compiled", is_profiled=True)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= {str(package / extension): str(extension) for extension in extensions(package)}
