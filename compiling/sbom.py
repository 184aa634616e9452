"""The contents of a release as a CycloneDX 1.5 document: the distributions that it is installed with, and what it
bundles.
"""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from compiling.launcher import DISTRIBUTION

_PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)(?:\[[a-z0-9,._-]+\])?==([^ ;\\]+)(?: *; *([^\\]*?))? *\\?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")

_BUNDLED = (
    ("uplot", "1.6.32", "pkg:npm/uplot@1.6.32", "MIT"),
    ("inter", "4.1", "pkg:npm/%40fontsource-variable/inter@5.3.0", "OFL-1.1"),
)
"""Contained in the wheel itself: name, version, package URL and licence."""


def sbom(version: str, lock: str, moment: str) -> str:
    """Returns the document. `lock`: text of a lock file with hashes; `moment`: time of the release, as
    2026-01-31T00:00:00Z."""
    own = f"pkg:pypi/{DISTRIBUTION}@{version}"
    components = [*_pinned(lock), *_bundled()]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, own + moment)}",
        "version": 1,
        "metadata": {
            "timestamp": moment,
            "component": {
                "type": "application", "bom-ref": own, "name": DISTRIBUTION, "version": version, "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [component["bom-ref"] for component in components]}],
    }  # fmt: skip
    return json.dumps(document, indent=2) + "\n"


def _pinned(lock: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in lock.splitlines():
        if pin := _PINNED.match(line):
            name, version, marker = pin.groups()
            purl = f"pkg:pypi/{name}@{version}"
            found.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
            if marker:
                found[-1]["properties"] = [{"name": "python:marker", "value": marker.strip()}]
        elif found and (hashed := _HASH.search(line)):
            # One hash for each file that the index has of this version; an installation uses one of them.
            references = found[-1].setdefault("externalReferences", [])
            url = f"{found[-1]['purl']}#{len(references)}"
            hashes = [{"alg": "SHA-256", "content": hashed[1]}]
            references.append({"type": "distribution", "url": url, "hashes": hashes})
    return found


def _bundled() -> list[dict[str, Any]]:
    return [
        {
            "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
            "licenses": [{"license": {"id": licence}}],
        }
        for name, version, purl, licence in _BUNDLED
    ]  # fmt: skip
