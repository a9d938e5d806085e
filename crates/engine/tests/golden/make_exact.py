"""What the log-probabilities of a parity file would be without any rounding of activations: the arbiter between engines.

Usage: python3 make_exact.py MODEL.gguf PARITY.json OUT.json [NAME...]      (default names: parity-short parity-500)
Needs: pip install numpy gguf

llama.cpp and this engine both round activations to 8 bits, so each is some way off the model's own answer and they may be
further off each other. Here the same tokens (prompt, then llama.cpp's greedy continuation) go through the float32
decoder of make_inertia_reference.py. `steps[i]` lists the same token ids as `steps[i].top` of PARITY.json with their
float32 log-probabilities; `llama_cpp` says how far llama.cpp is from them.
"""
import json
import pathlib
import sys

import numpy as np

import make_inertia_reference as reference


def exact(model, prompt):
    steps, before = prompt["steps"], len(prompt["tokens"]) - 1
    tokens = prompt["tokens"] + prompt["greedy"][: len(steps) - 1]
    cache = model.empty_cache()
    for start in range(0, before, 512):
        stop = min(before, start + 512)
        model.forward(tokens[start:stop], np.arange(start, stop), cache)
    logits, _ = model.forward(tokens[before:], np.arange(before, len(tokens)), cache, all_logits=True)
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return [[[token, round(float(row[token]), 4)] for token, _ in step["top"]] for row, step in zip(logits, steps)]


def entry(prompt, steps):
    off = [abs(ours[1] - theirs[1]) for mine, step in zip(steps, prompt["steps"]) for ours, theirs in zip(mine, step["top"])]
    return {
        "name": prompt["name"],
        "llama_cpp": {"largest_difference": round(max(off), 4), "mean_difference": round(sum(off) / len(off), 4)},
        "steps": steps,
    }


def render(sha256, entries):
    blocks = []
    for item in entries:
        steps = ",\n   ".join(json.dumps(step) for step in item["steps"])
        blocks.append(f'  {{"name": "{item["name"]}", "llama_cpp": {json.dumps(item["llama_cpp"])}, "steps": [\n   {steps}\n  ]}}')
    return f'{{\n "model_sha256": "{sha256}",\n "prompts": [\n' + ",\n".join(blocks) + "\n ]\n}\n"


def main():
    model_path, parity_path, out = sys.argv[1:4]
    parity = json.loads(pathlib.Path(parity_path).read_text(encoding="utf-8"))
    names = sys.argv[4:] or ["parity-short", "parity-500"]
    model = reference.Decoder(model_path)
    entries = [entry(prompt, exact(model, prompt)) for prompt in parity["prompts"] if prompt["name"] in names]
    pathlib.Path(out).write_text(render(parity["model_sha256"], entries), encoding="utf-8")


if __name__ == "__main__":
    main()
