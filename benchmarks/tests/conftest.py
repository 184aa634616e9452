"""The rules of the gateway's own tests apply here too: no leaked keys, no state left behind, no dependence on speed."""

from tests.conftest import _no_key_leaks

__all__ = ["_no_key_leaks"]
