"""Blocks of every quantised format with their float32 values, and back, as Python's gguf package computes them.

Needs: python 3.11, gguf==0.19.0, numpy==2.4.6.
Usage: python quants.py SmolLM2-135M-Instruct.Q4_1.gguf > quants.json
(the file: tools/fetch; the output: internal/weights/testdata/quants.json). A few seconds.

Bytes are base64. Blocks are random bytes; their binary16 scales are random too but finite, zeros and subnormals included.
  dequantize: format to {blocks, float32}
  quantize: {float32: the input, rows of 256; formats: format to blocks}
  f16: SHA-256 of the float32 values of all 65,536 binary16 values in order, NaNs left out
  model: {tensor: SHA-256 of its float32 values} for some tensors of the file
"""

import base64
import hashlib
import json
import sys

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, quants

# format, bytes a block, offsets of its binary16 scales, blocks
FORMATS = [
    ("Q8_0", 34, [0], 12),
    ("Q4_0", 18, [0], 12),
    ("Q4_1", 20, [0, 2], 12),
    ("Q5_0", 22, [0], 12),
    ("Q5_1", 24, [0, 2], 12),
    ("Q4_K", 144, [0, 2], 4),
    ("Q5_K", 176, [0, 2], 4),
    ("Q6_K", 210, [208], 4),
]
QUANTIZE = ["BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
TENSORS = ["blk.0.attn_norm.weight", "blk.7.attn_q.weight", "blk.29.ffn_down.weight", "token_embd.weight"]


def b64(array):
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def scales(rng, n):
    """n finite binary16 values, as bits: zero, the smallest subnormal and the largest value lead."""
    bits = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    bits = np.where(bits & 0x7C00 == 0x7C00, bits & 0x83FF, bits).astype(np.uint16)
    bits[: min(n, 4)] = [0x0000, 0x8001, 0x7BFF, 0x3C00][: min(n, 4)]
    return bits


def random_blocks(rng, size, offsets, n):
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for i, at in enumerate(offsets):
        blocks[:, at : at + 2] = np.roll(scales(rng, n), i).view(np.uint8).reshape(n, 2)
    return blocks


def values(rng):
    """Rows of 256: normal, tiny, a wide range, all zero, one spike, constant, integers (ties)."""
    rows = [
        rng.standard_normal(256),
        rng.standard_normal(256) * 1e-6,
        rng.standard_normal(256) * np.exp(rng.uniform(-8, 8, 256)),
        np.zeros(256),
        np.eye(1, 256, 100)[0] * -3.75,
        np.full(256, 0.625),
        rng.integers(-8, 8, 256),
    ]
    return np.array(rows, dtype=np.float32)


def main():
    rng = np.random.default_rng(3)
    out = {"dequantize": {}, "quantize": {"formats": {}}, "model": {}}
    with np.errstate(over="ignore"):
        for name, size, offsets, n in FORMATS:
            blocks = random_blocks(rng, size, offsets, n)
            result = quants.dequantize(blocks, Type[name]).astype("<f4")
            out["dequantize"][name] = {"blocks": b64(blocks), "float32": b64(result)}
    rows = values(rng)
    out["quantize"]["float32"] = b64(rows)
    for name in QUANTIZE:
        out["quantize"]["formats"][name] = b64(quants.quantize(rows, Type[name]))
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    every = every[~np.isnan(every)].astype("<f4")
    out["f16"] = hashlib.sha256(every.tobytes()).hexdigest()
    tensors = {t.name: t for t in GGUFReader(sys.argv[1]).tensors}
    for name in TENSORS:
        t = tensors[name]
        out["model"][name] = hashlib.sha256(quants.dequantize(t.data, t.tensor_type).astype("<f4").tobytes()).hexdigest()
    json.dump(out, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
