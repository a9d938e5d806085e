#!/usr/bin/env python3
"""Makes `quantisations.safetensors` beside this script: random blocks of every number format that is read, and the floats
that the reference says they are.

    pip install gguf==0.19.0 numpy safetensors
    python make_quantisations.py

`NAME.data` are the bytes of BLOCKS super-blocks of 256 values, random but for the f16 scales, which have ordinary sizes;
`NAME.values` what `gguf.quants.dequantize` makes of them.
"""
import pathlib

import gguf
import numpy
from gguf.quants import dequantize
from safetensors.numpy import save_file

BLOCKS = 4
# Where the f16 numbers of a block lie.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}  # fmt: skip


def main():
    random = numpy.random.default_rng(7)
    tensors = {}
    for name, halves in HALVES.items():
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        count = BLOCKS * 256 // block
        data = random.integers(0, 256, (count, size), dtype=numpy.uint8)
        for at in halves:
            scales = random.uniform(-0.02, 0.02, count).astype(numpy.float16)
            data[:, at : at + 2] = scales.view(numpy.uint8).reshape(count, 2)
        tensors[f"{name}.data"] = data.reshape(-1)
        tensors[f"{name}.values"] = dequantize(data.reshape(1, -1), kind).reshape(-1).astype(numpy.float32)
    save_file(tensors, pathlib.Path(__file__).resolve().parent / "quantisations.safetensors")


main()
