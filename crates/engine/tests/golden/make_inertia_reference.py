"""Runs the decode-time method on a real model in plain NumPy, so that the engine's retained sets can be compared.

Usage: python3 make_inertia_reference.py MODEL.gguf OUT.json
Needs: pip install numpy gguf llama-cpp-python (the last one for its tokenizer only).

Everything is float32 with de-quantised weights and nothing is fused; the utility is float64. The context is prefilled
and never scored, the question is decode step 1, and greedy decoding follows. For every combination of ratio, refresh
and aggregation OUT.json holds, per step, the token that came out, the retained positions (one shared ranking, sequential
coupling) and `border`: the relative distance between the utility of the last entry kept and the first one evicted. An
engine with quantised activations may swap entries where the border is tight, and may choose another token where two
logits are close (`gap`), so compare sets by overlap and feed it the tokens given here.
"""
import fractions
import hashlib
import json
import math
import pathlib
import sys

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
STEPS, ALPHA = 8, 0.8
RATIOS, REFRESHES, AGGREGATIONS = ("0.9", "0.5"), ("1", "4", "once"), ("ema", "single-step", "cumulative")


class Decoder:
    """Families `llama` (rotates neighbouring pairs) and `qwen2` (rotates halves, has biases)."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.w = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
        field = lambda key: reader.fields[key].contents()
        family = field("general.architecture")
        self.layers = field(f"{family}.block_count")
        self.heads = field(f"{family}.attention.head_count")
        self.kv_heads = field(f"{family}.attention.head_count_kv")
        self.epsilon = field(f"{family}.attention.layer_norm_rms_epsilon")
        self.size = self.w["blk.0.attn_k.weight"].shape[0] // self.kv_heads
        self.frequencies = field(f"{family}.rope.freq_base") ** (-np.arange(0, self.size, 2) / self.size)
        self.halves = family == "qwen2"

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.w[name]

    def linear(self, x, name):
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def rotate(self, x, positions):
        """x is [rows][heads][size]"""
        angle = positions[:, None] * self.frequencies
        cos, sin = np.cos(angle)[:, None].astype(np.float32), np.sin(angle)[:, None].astype(np.float32)
        half = self.size // 2
        a, b = (x[..., :half], x[..., half:]) if self.halves else (x[..., 0::2], x[..., 1::2])
        turned = (a * cos - b * sin, a * sin + b * cos)
        return np.concatenate(turned, -1) if self.halves else np.stack(turned, -1).reshape(x.shape)

    def forward(self, tokens, positions, cache, want_rows=False, all_logits=False):
        """Appends to `cache`, a list of [keys, values] per layer, each [entries][KV heads][size].

        Returns the logits of the last token (or of all) and, if wanted, per layer the mean over the query heads of the last
        query's softmax row (Eq. 1 of the paper).
        """
        x = self.w["token_embd.weight"][tokens]
        count, rows = len(tokens), []
        hidden = np.triu(np.full((count, count), -np.inf, np.float32), 1)
        for layer in range(self.layers):
            name = f"blk.{layer}."
            h = self.norm(x, name + "attn_norm.weight")
            q = self.rotate(self.linear(h, name + "attn_q").reshape(count, self.heads, self.size), positions)
            k = self.rotate(self.linear(h, name + "attn_k").reshape(count, self.kv_heads, self.size), positions)
            v = self.linear(h, name + "attn_v").reshape(count, self.kv_heads, self.size)
            cache[layer] = [np.concatenate(pair) for pair in zip(cache[layer], (k, v))]
            keys, values = cache[layer]
            out, total = np.empty_like(q), np.zeros(len(keys))
            for head in range(self.heads):
                shared = head * self.kv_heads // self.heads
                logits = q[:, head] @ keys[:, shared].T / math.sqrt(self.size)
                logits[:, len(keys) - count :] += hidden
                weights = np.exp(logits - logits.max(-1, keepdims=True))
                weights /= weights.sum(-1, keepdims=True)
                out[:, head] = weights @ values[:, shared]
                total += weights[-1]
            rows.append(total / self.heads)
            x = x + self.linear(out.reshape(count, -1), name + "attn_output")
            h = self.norm(x, name + "ffn_norm.weight")
            gate, up = self.linear(h, name + "ffn_gate"), self.linear(h, name + "ffn_up")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, name + "ffn_down")
        last = self.norm(x if all_logits else x[-1:], "output_norm.weight")
        logits = last @ self.w.get("output.weight", self.w["token_embd.weight"]).T
        return (logits if all_logits else logits[0]), (rows if want_rows else None)

    def empty_cache(self):
        return [[np.zeros((0, self.kv_heads, self.size), np.float32)] * 2 for _ in range(self.layers)]


def aggregate(utility, score, aggregation):
    if aggregation == "single-step":
        return score
    if aggregation == "cumulative":
        return utility + score
    return ALPHA * utility + (1 - ALPHA) * score


def decode(model, prefilled, context_tokens, question, ratio, refresh, aggregation):
    budget = max(1, math.floor((1 - fractions.Fraction(ratio)) * context_tokens))
    cache = [list(pair) for pair in prefilled]
    utility, held, next_position = np.zeros(context_tokens), np.arange(context_tokens), context_tokens
    step_tokens, steps = question, []
    for step in range(1, STEPS + 1):
        fresh = np.arange(next_position, next_position + len(step_tokens))
        next_position += len(fresh)
        refreshing = step == 1 or (refresh != "once" and (step - 1) % int(refresh) == 0)
        newcomer = 0.0 if refreshing else utility.mean()
        utility = np.concatenate([utility, np.full(len(fresh), newcomer)])
        held = np.concatenate([held, fresh])
        logits, rows = model.forward(step_tokens, fresh, cache, want_rows=True)
        if refreshing:
            for row in rows:
                utility = aggregate(utility, row, aggregation)
        border = None
        if len(held) > budget:
            order = np.lexsort((held, utility))             # lowest utility first; of equals the earlier position first
            kept = np.sort(order[-budget:])
            low, high = utility[order[-budget - 1]], utility[order[-budget]]
            border = float((high - low) / high) if high > 0 else 0.0
            utility, held = utility[kept], held[kept]
            cache = [[keys[kept], values[kept]] for keys, values in cache]
        best = np.sort(logits)[-2:]
        step_tokens = [int(logits.argmax())]
        steps.append({
            "token": step_tokens[0], "gap": round(float(best[1] - best[0]), 4), "refresh": refreshing,
            "border": None if border is None else float(f"{border:.3g}"), "retained": held.tolist(),
        })
    return {"ratio": ratio, "refresh": refresh, "aggregation": aggregation, "budget": budget, "steps": steps}


def tokenize(path, texts):
    import llama_cpp

    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode("utf-8"), add_bos=False, special=True) for text in texts]


def main():
    path, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    names = ("inertia-context.txt", "inertia-question.txt")
    context, question = tokenize(path, [(HERE / name).read_text(encoding="utf-8") for name in names])
    model = Decoder(path)
    cache = model.empty_cache()
    model.forward(context, np.arange(len(context)), cache)
    runs = [
        decode(model, cache, len(context), question, ratio, refresh, aggregation)
        for ratio in RATIOS for refresh in REFRESHES for aggregation in AGGREGATIONS
    ]
    head = {
        "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "alpha": ALPHA, "prompt_tokens": len(context),
        "context_file": names[0], "question_file": names[1], "context_tokens": context, "question_tokens": question,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    body = []
    for run in runs:
        steps = ",\n   ".join(json.dumps(step, separators=(",", ":")) for step in run.pop("steps"))
        body.append(f"  {json.dumps(run)[:-1]}, \"steps\": [\n   {steps}\n  ]}}")
    out.write_text("{\n" + "\n".join(lines) + "\n \"runs\": [\n" + ",\n".join(body) + "\n ]\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
