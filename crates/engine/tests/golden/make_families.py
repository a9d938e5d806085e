#!/usr/bin/env python3
"""Makes the folder `families` beside this script: tiny random models of every family, and what transformers says of them.

    python3 -m venv VENV && VENV/bin/pip install transformers==5.2.0 torch==2.8.0 gguf==0.19.0 safetensors==0.8.0
    VENV/bin/python make_families.py [--converter LLAMA_CPP/convert_hf_to_gguf.py]

Each case is a folder as `save_pretrained` writes it (config.json, one or several .safetensors files, a tokenizer of 64
tokens) and `golden.safetensors` in it:

- `tokens`: TOKENS numbers, the input; beyond every window and every original context below.
- `logits`: of every position, float32, computed in float32 on one thread with the weights as stored, eager attention.
- `next`: GREEDY tokens that follow, each the one with the largest logit.

Weights are drawn anew, larger than transformers initialises them, so that attention is peaked and a wrong norm, window or
rotation shows in the logits; then rounded to the type they are stored in. `--converter` makes `model.gguf` too, with
llama.cpp's own script (of llama-cpp-python 0.3.36) in the stored type; it does not know the tiny tokenizer and is told its kind.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "families"
VOCABULARY, TOKENS, GREEDY = 64, 300, 16
SMALL = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=512, bos_token_id=62, eos_token_id=63,
    pad_token_id=None, attn_implementation="eager",
)  # fmt: skip


def rope(kind, theta=10_000.0, **rest):
    return {"rope_type": kind, "rope_theta": theta, **rest}


YARN = dict(factor=4.0, original_max_position_embeddings=128)
CASES = {
    "llama": ("Llama", "float32", dict(
        rope_parameters=rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64))),
    "llama-linear": ("Llama", "float16", dict(head_dim=32, tie_word_embeddings=True,
                                              rope_parameters=rope("linear", factor=4.0))),
    "mistral": ("Mistral", "bfloat16", dict(sliding_window=None)),
    "mistral-window": ("Mistral", "bfloat16", dict(sliding_window=40)),
    "qwen2": ("Qwen2", "float32", dict(tie_word_embeddings=True, rope_parameters=rope("yarn", **YARN))),
    "qwen2-window": ("Qwen2", "bfloat16", dict(use_sliding_window=True, sliding_window=50, max_window_layers=2,
                                                rope_parameters=rope("yarn", attention_factor=1.25, beta_fast=16.0, **YARN))),
    "qwen3": ("Qwen3", "bfloat16", dict(rope_parameters=rope("yarn", 1e6, **YARN))),
    "qwen3moe": ("Qwen3Moe", "bfloat16", dict(num_hidden_layers=2, moe_intermediate_size=32, num_experts=6,
                                              num_experts_per_tok=3, norm_topk_prob=True)),
    "qwen3moe-mixed": ("Qwen3Moe", "float16", dict(num_hidden_layers=2, moe_intermediate_size=32, num_experts=5,
                                                   num_experts_per_tok=2, norm_topk_prob=False, mlp_only_layers=[1])),
    "gemma3": ("Gemma3", "bfloat16", dict(
        num_hidden_layers=6, sliding_window=40, query_pre_attn_scalar=16, rope_parameters={
            "full_attention": rope("linear", 1e6, factor=8.0), "sliding_attention": rope("default")})),
    "gemma3-scale": ("Gemma3", "bfloat16", dict(
        num_hidden_layers=3, sliding_window=64, query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
}  # fmt: skip
CLASSES = {"Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM")}
# Converted to GGUF too. The converter drops what is particular about the others (windows, factors of attention).
CONVERTED = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2", "qwen3moe": "qwen2",
             "gemma3": "qwen2"}  # fmt: skip


def tokenizer():
    """Byte-level BPE over a few letters; 62 begins a text, 63 ends it."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + ["Ġ", "Ċ", ".", ","]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n"), ("e", "r")]
    tokens = letters + ["".join(merge) for merge in merges]
    tokens += [f"<unused{number}>" for number in range(VOCABULARY - 2 - len(tokens))]
    special = [{"id": 62, "content": "<s>"}, {"id": 63, "content": "</s>"}]
    flags = dict(special=True, normalized=False, lstrip=False, rstrip=False, single_word=False)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{**token, **flags} for token in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)}, "merges": [list(merge) for merge in merges],
        },
    }  # fmt: skip


def draw(model, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1 and "norm" in name:
            base = 0.0 if "Gemma" in type(model).__name__ else 1.0
            noise = base + 0.3 * noise
        elif parameter.dim() == 1:
            noise = 0.3 * noise
        elif "embed" in name:
            noise = noise * (0.6 if "Gemma" not in type(model).__name__ else 0.15)
        else:
            noise = noise * 1.5 / parameter.shape[-1] ** 0.5
        parameter.data.copy_(noise.to(dtype).to(torch.float32))


@torch.no_grad()
def greedy(model, tokens):
    """The input and what follows; None where two tokens are so close that rounding might decide."""
    for _ in range(GREEDY):
        best = model(tokens).logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < 0.05:
            return None
        tokens = torch.cat([tokens, best.indices[:1].unsqueeze(0)], 1)
    return tokens


def make(name, index, family, dtype, options, converter):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    config_class, model_class = CLASSES.get(family, (f"{family}Config", f"{family}ForCausalLM"))
    config = getattr(transformers, config_class)(**{**SMALL, **options})
    model = getattr(transformers, model_class)(config).to(torch.float32).eval()
    stored, dtype = dtype, getattr(torch, dtype)
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(index))
    for attempt in range(100):
        draw(model, dtype, 1000 * index + attempt)
        following = greedy(model, tokens)
        if following is not None:
            break
    with torch.no_grad():
        logits = model(tokens).logits[0]
    model.to(dtype).save_pretrained(folder, max_shard_size="30KB" if index == 0 else "1GB")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False, indent=1) + "\n")
    settings = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
    save_file({
        "tokens": tokens[0].to(torch.int32), "logits": logits.contiguous(),
        "next": following[0, TOKENS:].to(torch.int32).contiguous(),
    }, folder / "golden.safetensors")  # fmt: skip
    if converter and name in CONVERTED:
        convert(folder, CONVERTED[name], converter, {"float32": "f32", "bfloat16": "bf16"}[stored])
    print(name, f"largest logit {logits.abs().max():.1f}")


def convert(folder, kind, converter, stored):
    """Runs the converter with the vocabulary of all families read as byte-level BPE of `kind`."""
    code = f"""
import runpy, sys
sys.argv = ["convert_hf_to_gguf.py", {str(folder)!r}, "--outtype", {stored!r}, "--outfile", {str(folder / "model.gguf")!r}]
sys.path.insert(0, {str(pathlib.Path(converter).parent)!r})
sys.path.insert(0, {str(pathlib.Path(converter).parent / "gguf-py")!r})
import conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: {kind!r}
for module in ("llama", "qwen", "gemma", "mistral"):
    try:
        loaded = __import__("conversion." + module, fromlist=["x"])
    except ImportError:
        continue
    for value in vars(loaded).values():
        if isinstance(value, type) and issubclass(value, base.TextModel) and "set_vocab" in vars(value):
            value.set_vocab = lambda self: self._set_vocab_gpt2()
runpy.run_path({str(converter)!r}, run_name="__main__")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--converter")
    arguments.add_argument("--only")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    for index, (name, (family, dtype, options)) in enumerate(CASES.items()):
        if chosen.only in (None, name):
            make(name, index, family, dtype, options, chosen.converter)


if __name__ == "__main__":
    main()
