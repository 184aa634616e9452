"""The environment that a child process of the gateway gets.

The gateway's own environment holds provider keys, the operator's token and more. A child gets only variables that are
known to be harmless or that the config names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_NAMES = frozenset({
    "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TEMP", "TMP", "TMPDIR",
    "TZ", "USER", "VIRTUAL_ENV", "HF_HOME", "LD_LIBRARY_PATH",
})  # fmt: skip
_FAMILIES = (
    "CUDA_", "GGML_", "HF_HUB_", "HIP_", "HSA_", "LC_", "LLAMA_", "NCCL_", "NVIDIA_", "OLLAMA_", "OMP_", "PYTORCH_",
    "RCCL_", "ROCM_", "ROCR_", "TORCH_", "TRANSFORMERS_", "VLLM_", "XDG_",
)  # fmt: skip
_SECRETIVE = ("KEY", "PASSWORD", "SECRET", "TOKEN")
"""A variable of a family with one of these in its name is passed on only if the config names it: VLLM_API_KEY,
HF_HUB_TOKEN.
"""


def environment(own: Mapping[str, str], passed: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Environment of a child: the harmless part of `own`, the variables of `own` that `passed` names, and `given` on
    top."""
    harmless = {name: value for name, value in own.items() if _is_harmless(name)}
    named = {name: own[name] for name in passed if name in own}
    return {**harmless, **named, **given}


def _is_harmless(name: str) -> bool:
    return name in _NAMES or (name.startswith(_FAMILIES) and not any(word in name for word in _SECRETIVE))
