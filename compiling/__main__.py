"""`python -m compiling [--profile | --quick]`: compiles the package into build/compiled/lib, and prints that path."""

from __future__ import annotations

import sys

from compiling.build import ROOT, TARGET, BuildError, build, extensions

if __name__ == "__main__":
    try:
        package = build(ROOT, TARGET, is_profiled="--profile" in sys.argv[1:], is_quick="--quick" in sys.argv[1:])
    except BuildError as error:
        sys.exit(f"the package was not compiled:\n{error}")
    print(f"{len(list(extensions(package)))} modules are compiled: PYTHONPATH={package}")
