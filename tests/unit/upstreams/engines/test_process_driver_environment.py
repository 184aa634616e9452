from __future__ import annotations

from llm_guard.upstreams.engines.process_driver import environment

OWN = {
    "PATH": "/bin",
    "HOME": "/root",
    "CUDA_VISIBLE_DEVICES": "0",
    "HF_HOME": "/models",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_API_KEY": "sk-engine",
    "HF_TOKEN": "hf-1",
    "HF_HUB_TOKEN": "hf-2",
    "OPENAI_API_KEY": "sk-provider",
    "LLM_GUARD_OPS_TOKEN": "operator",
    "HTTPS_PROXY": "http://user:password@proxy",
    "LD_PRELOAD": "/evil.so",
    "PYTHONPATH": "/gateway",
}


def test_child_gets_harmless_variables_and_no_key() -> None:
    assert environment(OWN, (), {}) == {
        "PATH": "/bin",
        "HOME": "/root",
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_HOME": "/models",
        "VLLM_LOGGING_LEVEL": "INFO",
    }


def test_child_gets_named_and_given_variables() -> None:
    found = environment({"PATH": "/bin", "HF_TOKEN": "hf-1"}, ("HF_TOKEN", "NOT_SET"), {"PATH": "/own", "A": "b"})
    assert found == {"PATH": "/own", "HF_TOKEN": "hf-1", "A": "b"}
