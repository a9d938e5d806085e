#!/usr/bin/env python3
"""Makes `kvpress-smollm2.json` beside this script: what kvpress keeps of a real prompt on a trained model.

    (the environment of make_kvpress.py)
    VENV/bin/python make_kvpress_smollm2.py smollm2-135m.gguf

The model is the catalog's smollm2-135m, dequantised to float32 by transformers; the prompt is `parity-500.txt` without
a chat template around it. Sets and `kvzip` are as in kvpress.json, at RATIO alone, without scores and logits. An engine
that rounds activations ranks a little differently, so compare sets by overlap. `gap` says how little it takes.
"""
import hashlib
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import make_kvpress as kvpress

RATIO = 0.9


def main():
    path = pathlib.Path(sys.argv[1]).resolve()
    kvpress.quiet()
    logging.disable_progress_bar()
    options = {"gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **options)
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent), attn_implementation="sdpa", dtype=torch.float32, **options
    ).eval()
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
    prompts = json.loads((kvpress.HERE / "parity-smollm2.json").read_text())["prompts"]
    prompt = next(prompt for prompt in prompts if prompt["name"] == "parity-500")
    tokens = prompt["tokens"]
    assert encode((kvpress.HERE / prompt["file"]).read_text()) == tokens

    kvpress.RATIOS = (RATIO,)
    ids = {text: encode(text) for text in ("", "\n", kvpress.REPEAT_FIRST, kvpress.REPEAT_OTHER)}
    entries = kvpress.prefill_goldens(model, tokens, prompt["greedy"][0])
    entries |= kvpress.kvzip_goldens(model, tokens, prompt["greedy"][0], ids)
    result = {
        "versions": kvpress.versions(),
        "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "tokens": tokens,
        "ratio": RATIO,
        "kvzip": kvpress.kvzip_description(ids),
        "prefill": {
            name: {"press": entry["press"], **{key: entry["ratios"][str(RATIO)][key] for key in ("gap", "retained")}}
            for name, entry in entries.items()
            if str(RATIO) in entry["ratios"]
        },
    }
    kvpress.write_json(result, kvpress.HERE / "kvpress-smollm2.json")


if __name__ == "__main__":
    main()
