"""Writes a model for llama.cpp: a Llama of four layers with random weights, whose tokens are single characters.

It answers any prompt with printable nonsense, and always the same at temperature 0. It never ends by itself, because
the row of its end token is zero.

Source: ggml-org/ggml, docs/gguf.md (version 3), and the names of tensors and keys in ggml-org/llama.cpp,
gguf-py/gguf/constants.py.
"""

from __future__ import annotations

import math
import random
import struct
from array import array
from pathlib import Path

_WIDTH, _INNER, _LAYERS, _HEADS, _CONTEXT = 256, 512, 4, 4, 4096
_ALIGNMENT = 32
_F32 = 0
_SPECIAL = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
_CHARACTERS = ["\u2581", *(chr(code) for code in range(33, 127))]  # the first is how a space is written
_TOKENS = _SPECIAL + _CHARACTERS
_TYPES = [2, 3, 3] + [6] * 256 + [1] * len(_CHARACTERS)
"""Unknown, control, byte and normal tokens."""
_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_model(path: Path) -> None:
    """Writes 11 MB."""
    tensors = _tensors()
    head, data = b"", bytearray()
    for name, (shape, values) in tensors.items():
        sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += _text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", _F32, len(data))
        data += _padded(values.tobytes())
    keys = _keys()
    begin = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + head
    path.write_bytes(_padded(begin) + data)


def _keys() -> list[bytes]:
    sizes = {
        "context_length": _CONTEXT, "embedding_length": _WIDTH, "block_count": _LAYERS, "feed_forward_length": _INNER,
        "attention.head_count": _HEADS, "attention.head_count_kv": _HEADS, "vocab_size": len(_TOKENS),
        "rope.dimension_count": _WIDTH // _HEADS,
    }  # fmt: skip
    return [
        _key("general.architecture", 8, _text("llama")),
        *(_key(f"llama.{name}", 4, struct.pack("<I", size)) for name, size in sizes.items()),
        _key("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
        _key("tokenizer.ggml.model", 8, _text("llama")),
        _key("tokenizer.ggml.tokens", 9, _list(8, [_text(token) for token in _TOKENS])),
        _key("tokenizer.ggml.scores", 9, _list(6, [struct.pack("<f", 0.0)] * len(_TOKENS))),
        _key("tokenizer.ggml.token_type", 9, _list(5, [struct.pack("<i", kind) for kind in _TYPES])),
        _key("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 1)),
        _key("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", 2)),
        _key("tokenizer.ggml.add_space_prefix", 7, b"\0"),
        _key("tokenizer.chat_template", 8, _text(_TEMPLATE)),
    ]


def _tensors() -> dict[str, tuple[tuple[int, ...], array[float]]]:
    draw = random.Random(1)  # not a secret
    silent = array("f", bytes(4 * _WIDTH * len(_SPECIAL)))
    found = {
        "token_embd.weight": ((len(_TOKENS), _WIDTH), _random(draw, len(_TOKENS) * _WIDTH, 1.0)),
        "output.weight": ((len(_TOKENS), _WIDTH), silent + _random(draw, len(_CHARACTERS) * _WIDTH, 1.0)),
        "output_norm.weight": ((_WIDTH,), _ones()),
    }
    matrices = {
        "attn_q": (_WIDTH, _WIDTH), "attn_k": (_WIDTH, _WIDTH), "attn_v": (_WIDTH, _WIDTH),
        "attn_output": (_WIDTH, _WIDTH), "ffn_gate": (_INNER, _WIDTH), "ffn_up": (_INNER, _WIDTH),
        "ffn_down": (_WIDTH, _INNER),
    }  # fmt: skip
    for layer in range(_LAYERS):
        for name, (rows, columns) in matrices.items():
            # Large weights, so that what comes next depends on what came before.
            values = _random(draw, rows * columns, 5 / math.sqrt(columns))
            found[f"blk.{layer}.{name}.weight"] = ((rows, columns), values)
        for name in ("attn_norm", "ffn_norm"):
            found[f"blk.{layer}.{name}.weight"] = ((_WIDTH,), _ones())
    return found


def _random(draw: random.Random, count: int, most: float) -> array[float]:
    return array("f", [number * most / 32768 for number in array("h", draw.randbytes(2 * count))])


def _ones() -> array[float]:
    return array("f", [1.0]) * _WIDTH


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _list(kind: int, values: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
