#!/usr/bin/env python3
"""Makes `kvpress.gguf` and `kvpress.json` beside this script: what NVIDIA's kvpress does on a tiny random model.

    python3.11 -m venv VENV && VENV/bin/pip install kvpress==0.5.5 transformers==5.2.0 torch==2.8.0 gguf==0.19.0
    VENV/bin/python make_kvpress.py

kvpress itself runs here, on a transformers LlamaForCausalLM in float32 with sdpa attention, on the CPU, on one thread;
entries that say `kvpress: false` are the only ones with a changed press. `kvpress.gguf` is the same model (rows of the
query and key weights permuted as every llama GGUF has them), all tensors F32. Everything random follows from SEED. No
token comes twice in the prompt, or the norms of two keys of the first layer would tie. The script runs everything a
second time in float64 and fails unless the retained sets are the same. Floats are rounded to 6 significant digits.
Python's `X[layer][head]` is an array over positions (scores) or of positions in rising order (sets) of a KV head.

kvpress.json:

- `tokens`: the prompt; `next_token`: what is fed after it, at position `len(tokens)`.
- `logits`: of the last prompt token, all of them, nothing evicted. `next_logits` here and below: the first NEXT_LOGITS
  logits after `next_token`, over whatever cache the compression left.
- `prefill`: one compression at the end of the prompt.
  - `press`: the press as Python writes it, without its ratio.
  - `scores`: what `press.score` gave (KVzip: `score_val` when it ranks), sinks and windows included: they hold the
    largest score of the layer (KVzip: of all layers) + 1. A string instead of numbers names the entry whose scores
    were the same bits; null where they say nothing (StreamingLLM: 1 for kept, 0 for evicted).
  - `ratios`, by compression ratio: `retained` sets, `next_logits`, and `gap`: the smallest relative distance between
    the score of an entry kept and one evicted that competed for the same place.
- `kvzip`: what the replays of the two KVzip kinds consist of. The tokens from `prefix_length` on are cut into chunks
  of `chunk`, the last one shorter. Chunk i is replayed as `first_prompt` (i = 0) or `other_prompt` + the last `overlap`
  tokens of chunk i - 1, then `suffix`, then the chunk, at positions len(tokens) and on, over the whole prompt's cache.
- `decode`: DecodingPress over the first `prompt` tokens of `tokens`, then `steps` decode steps that feed the tokens
  after them, one each, with true positions.
  - `press`, `interval`, `target`; `kvpress` is false where the press was corrected (see `InOrder`).
  - `compressions`: `step` (from 1), at the end of which it happened, and the `evicted` positions: retained is what was
    there, the new tokens included, without them.
  - `first_scores`: scores at the first compression. `gap` as above, over all compressions.
  - `last_logits`: the first NEXT_LOGITS logits after the last step.
"""
import argparse
import json
import logging
import math
import pathlib
from importlib.metadata import version
from unittest import mock

import gguf
import numpy as np
import torch
from kvpress import (
    AdaKVPress,
    DecodingPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    KVzipPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
# Of the first 90 seeds the one whose retained sets hang least on the last bits (`--search`).
SEED = 27
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, VOCABULARY = 3, 32, 4, 2, 32, 64, 512
CONTEXT = 2048

# Chosen so that kvpress's floor of float products, `int(305 * (1 - 0.9))`, is the exact floor everywhere. With 300
# tokens it would not be: `1 - 0.9` is a little less than 0.1, and 29 entries stay, not 30.
PROMPT = 305
RATIOS = (0.5, 0.9)
DECODE_PROMPT, DECODE_STEPS, TARGET = 96, 32, 64
NEXT_LOGITS = 32

CHUNK = 128
CHAT_PREFIX = 5
REPEAT_FIRST = "\n\nRepeat the previous context exactly."
REPEAT_OTHER = "\n\nRepeat the part of the previous context exactly, starting with"


# ---------------------------------------------------------------------------------------------------------------- model


def make_model(seed):
    """Queries and keys are large, so that attention is peaked, and the embeddings have a mean, so that queries do."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).eval()
    random = np.random.default_rng(seed)
    spreads = {"q_proj": 1.7, "k_proj": 1.7}
    mean = 0.7 * random.standard_normal(HIDDEN)
    for name, parameter in sorted(model.named_parameters()):
        shape = tuple(parameter.shape)
        if "embed_tokens" in name:
            values = mean + random.standard_normal(shape)
        elif "norm" in name:
            values = random.uniform(0.8, 1.2, shape)
        else:
            values = spreads.get(name.split(".")[-2], 1.0) * random.standard_normal(shape) / math.sqrt(shape[1])
        parameter.data = torch.from_numpy(values.astype(np.float32))
    model.tie_weights()
    return model


def write_gguf(model, path):
    """The file; its tokenizer has 256 bytes, two merges, holes, and one control token."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny random model of the kvpress golden numbers")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)

    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    tokens = [alphabet[byte] for byte in range(256)] + ["Ġt", "he"]
    holes = VOCABULARY - len(tokens) - 1
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens + [f"<|unused_{i}|>" for i in range(holes)] + ["<|endoftext|>"])
    writer.add_token_types([1] * len(tokens) + [5] * holes + [3])
    writer.add_token_merges(["Ġ t", "h e"])
    writer.add_bos_token_id(VOCABULARY - 1)
    writer.add_eos_token_id(VOCABULARY - 1)
    writer.add_add_bos_token(False)

    def interleaved(weight, heads):
        return weight.reshape(heads, 2, HEAD_DIM // 2, HIDDEN).swapaxes(1, 2).reshape(weight.shape)

    def add(name, weight):
        writer.add_tensor(name, np.ascontiguousarray(weight))

    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    add("token_embd.weight", weights["model.embed_tokens.weight"])
    add("output_norm.weight", weights["model.norm.weight"])
    for layer in range(LAYERS):
        of = lambda name: weights[f"model.layers.{layer}.{name}.weight"]
        add(f"blk.{layer}.attn_norm.weight", of("input_layernorm"))
        add(f"blk.{layer}.attn_q.weight", interleaved(of("self_attn.q_proj"), HEADS))
        add(f"blk.{layer}.attn_k.weight", interleaved(of("self_attn.k_proj"), KV_HEADS))
        add(f"blk.{layer}.attn_v.weight", of("self_attn.v_proj"))
        add(f"blk.{layer}.attn_output.weight", of("self_attn.o_proj"))
        add(f"blk.{layer}.ffn_norm.weight", of("post_attention_layernorm"))
        add(f"blk.{layer}.ffn_gate.weight", of("mlp.gate_proj"))
        add(f"blk.{layer}.ffn_up.weight", of("mlp.up_proj"))
        add(f"blk.{layer}.ffn_down.weight", of("mlp.down_proj"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# -------------------------------------------------------------------------------------------------------------- helpers


def forward(model, tokens, cache, start):
    """Logits of the last token; the tokens stand at `start` and on, whatever the cache still holds."""
    positions = torch.arange(start, start + len(tokens))[None]
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), past_key_values=cache, position_ids=positions).logits[0, -1]


def watch_scores(press, seen):
    """Appends a copy of everything `press.score` returns to `seen`, by layer."""
    score = press.score

    def watched(module, *rest):
        scores = score(module, *rest)
        seen.setdefault(module.layer_idx, []).append(scores[0].clone())
        return scores

    press.score = watched


class Positions:
    """Which positions the rows of a cache are: found by the bits of their keys, which no compression changes."""

    def __init__(self):
        self.known = {}

    def read(self, cache, newest):
        """`[layer][head][row]`. Rows not seen before are at position `newest`, or at their index in a fresh cache."""
        fresh = not self.known
        found = []
        for layer, of_layer in enumerate(cache.layers):
            heads = []
            for head, keys in enumerate(of_layer.keys[0]):
                rows = [(layer, head, key.numpy().tobytes()) for key in keys]
                positions = [self.known.setdefault(row, i if fresh else newest) for i, row in enumerate(rows)]
                assert len(set(positions)) == len(positions)
                heads.append(positions)
            found.append(heads)
        return found


def gap(scores, kept, free=None):
    """Relative distance between the lowest score kept and the highest evicted; `free` were kept without a contest."""
    kept = torch.as_tensor(kept)
    low = scores[kept if free is None else kept & ~free].min().item()
    high = scores[~kept].max().item()
    return (low - high) / max(abs(low), abs(high))


def mask(positions, length):
    kept = torch.zeros(length, dtype=torch.bool)
    kept[positions] = True
    return kept


def gap_per_head(scores, retained):
    """`scores[layer]` is a tensor of heads × positions."""
    return min(
        gap(of_head, mask(positions, len(of_head)))
        for layer, heads in enumerate(retained)
        for of_head, positions in zip(scores[layer], heads)
    )


def as_lists(scores):
    return [scores[layer].tolist() for layer in range(len(scores))]


def sorted_sets(sets):
    return [[sorted(positions) for positions in heads] for heads in sets]


def from_masked_indices(model, length):
    """Retained sets of presses that only mark what they evict."""
    retained = []
    for layer in model.model.layers:
        _, heads, positions = layer.self_attn.masked_key_indices
        evicted = [set(positions[heads == head].tolist()) for head in range(model.config.num_key_value_heads)]
        retained.append([[i for i in range(length) if i not in of_head] for of_head in evicted])
    return retained


# -------------------------------------------------------------------------------------------------------------- prefill


def prefill_presses():
    """Name, how to make it for a ratio, how Python writes it, ratios at which no scores tie."""
    return [
        ("tova", lambda r: TOVAPress(r), "TOVAPress()", RATIOS),
        # At 0.9 fewer entries stay than the window holds, and the window's scores all tie.
        ("snapkv", lambda r: SnapKVPress(r), "SnapKVPress()", (0.5,)),
        ("snapkv_window_16", lambda r: SnapKVPress(r, window_size=16), "SnapKVPress(window_size=16)", RATIOS),
        ("expected_attention", lambda r: ExpectedAttentionPress(r), "ExpectedAttentionPress()", RATIOS),
        ("keydiff", lambda r: KeyDiffPress(r), "KeyDiffPress()", RATIOS),
        ("knorm", lambda r: KnormPress(r), "KnormPress()", RATIOS),
        ("streaming_llm", lambda r: StreamingLLMPress(r), "StreamingLLMPress()", RATIOS),
    ]


def adaptive_presses():
    """Name, name of the press inside, and the rest as above."""
    return [
        (
            "adakv_expected_attention",
            "expected_attention",
            lambda r: AdaKVPress(ExpectedAttentionPress(r)),
            "AdaKVPress(ExpectedAttentionPress())",
            RATIOS,
        ),
        # A safeguard large enough to bind: the default one never does on this model.
        (
            "adakv_expected_attention_safeguard_0.95",
            "expected_attention",
            lambda r: AdaKVPress(ExpectedAttentionPress(r), alpha_safeguard=0.95),
            "AdaKVPress(ExpectedAttentionPress(), alpha_safeguard=0.95)",
            RATIOS,
        ),
        ("adakv_snapkv", "snapkv", lambda r: AdaKVPress(SnapKVPress(r)), "AdaKVPress(SnapKVPress())", (0.5,)),
        (
            "adakv_snapkv_window_16",
            "snapkv_window_16",
            lambda r: AdaKVPress(SnapKVPress(r, window_size=16)),
            "AdaKVPress(SnapKVPress(window_size=16))",
            RATIOS,
        ),
    ]


def prefill_goldens(model, tokens, next_token):
    results, all_scores = {}, {}

    def run(press, scorer):
        seen, cache = {}, DynamicCache()
        watch_scores(scorer, seen)
        with press(model):
            forward(model, tokens, cache, 0)
        return cache, {layer: of_layer[0] for layer, of_layer in seen.items()}

    full, every = DynamicCache(), Positions()
    forward(model, tokens, full, 0)
    every.read(full, None)

    for name, make, text, ratios in prefill_presses():
        entry = {"press": text, "scores": None, "ratios": {}}
        for ratio in ratios:
            press = make(ratio)
            cache, scores = run(press, press)
            retained = sorted_sets(every.read(cache, None))
            entry["ratios"][str(ratio)] = {
                "retained": retained,
                "gap": gap_per_head(scores, retained),
                "next_logits": forward(model, [next_token], cache, len(tokens))[:NEXT_LOGITS].tolist(),
            }
            if name != "streaming_llm":
                assert entry["scores"] in (None, as_lists(scores)), "scores depend on the ratio"
                entry["scores"] = as_lists(scores)
        all_scores[name] = scores
        results[name] = entry

    for name, inner, make, text, ratios in adaptive_presses():
        entry = {"press": text, "scores": inner, "ratios": {}}
        for ratio in ratios:
            press = make(ratio)
            cache, scores = run(press, press.press)
            assert all(torch.equal(of_layer, all_scores[inner][layer]) for layer, of_layer in scores.items())
            retained = from_masked_indices(model, len(tokens))
            safe = int(int(len(tokens) * (1 - ratio)) * press.alpha_safeguard)
            gaps = []
            for layer, heads in enumerate(retained):
                kept = torch.cat([mask(positions, len(tokens)) for positions in heads])
                free = torch.cat([mask(of_head.topk(safe).indices, len(tokens)) for of_head in scores[layer]])
                gaps.append(gap(scores[layer].flatten(), kept, free))
            entry["ratios"][str(ratio)] = {
                "retained": retained,
                "gap": min(gaps),
                "next_logits": forward(model, [next_token], cache, len(tokens))[:NEXT_LOGITS].tolist(),
            }
        results[name] = entry
    return results


# ---------------------------------------------------------------------------------------------------------------- KVzip


class Tokenizer:
    """What KVzipPress asks of a tokenizer: fixed ids for its fixed texts, and a chat template or none."""

    def __init__(self, ids, chat):
        self.chat_template = "yes" if chat else None
        self.ids = ids

    def apply_chat_template(self, messages, **_):
        return "<prefix>" + messages[0]["content"] + "<suffix>"

    def encode(self, text, **_):
        return torch.tensor([self.ids[text]], dtype=torch.long)


def kvzip_ids(tokens, fresh):
    """Ids of the texts KVzip replays; `fresh` are ids that are not in the prompt."""
    return {
        "": [],
        "\n": fresh[:1],
        "<prefix>": tokens[:CHAT_PREFIX],
        "<suffix>": fresh[1:4],
        REPEAT_FIRST: fresh[4:11],
        REPEAT_OTHER: fresh[11:23],
    }


def kvzip_goldens(model, tokens, next_token, ids):
    results = {}
    for kind, chat in kvzip_kinds(ids):
        tokenizer = Tokenizer(ids, chat)
        source = mock.Mock()
        source.from_pretrained.return_value = tokenizer
        reference = None
        for layerwise in (False, True):
            name = f"{kind}_layerwise" if layerwise else kind
            entry = {"press": f"KVzipPress(layerwise={layerwise}, chunk_size={CHUNK})", "scores": None, "ratios": {}}
            for ratio in RATIOS:
                press = KVzipPress(ratio, layerwise=layerwise, chunk_size=CHUNK)
                cache, seen = DynamicCache(), {}
                compress_post = press.compress_post

                def watched(of_model):
                    compress_post(of_model)
                    seen["scores"] = press.score_val[:, 0].clone()

                press.compress_post = watched
                with mock.patch("kvpress.presses.kvzip_press.AutoTokenizer", source), torch.no_grad(), press(model):
                    model(input_ids=torch.tensor([tokens]), past_key_values=cache)
                scores = seen["scores"]
                assert reference is None or torch.equal(scores, reference)
                reference = scores
                retained = from_masked_indices(model, len(tokens))
                kept = torch.cat([mask(head, len(tokens)) for heads in retained for head in heads])
                if layerwise:
                    smallest = min(gap(*of_layer) for of_layer in zip(scores.flatten(1), kept.view(len(scores), -1)))
                else:
                    smallest = gap(scores.flatten(), kept)
                entry["ratios"][str(ratio)] = {
                    "retained": retained,
                    "gap": smallest,
                    "next_logits": forward(model, [next_token], cache, len(tokens))[:NEXT_LOGITS].tolist(),
                }
            entry["scores"] = kind if layerwise else as_lists(reference)
            results[name] = entry
    return results


def kvzip_kinds(ids):
    return [("kvzip", False)] + [("kvzip_chat", True)] * ("<prefix>" in ids)


def kvzip_description(ids):
    return {
        kind: {
            "prefix_length": len(ids["<prefix>"]) if chat else 0,
            "suffix": ids["<suffix>" if chat else "\n"],
            "chunk": CHUNK,
            "first_prompt": ids[REPEAT_FIRST],
            "other_prompt": ids[REPEAT_OTHER],
            "overlap": 8,
        }
        for kind, chat in kvzip_kinds(ids)
    }


# --------------------------------------------------------------------------------------------------------------- decode


class InOrder(SnapKVPress):
    """SnapKV without two accidents of decoding with kvpress.

    Rows stay in the order of their positions, so that pooling averages neighbours in the text: kvpress leaves them in
    the order of their scores. With `true_positions` every query of the window is rotated to its own position: kvpress
    rotates all of them to the newest, because it has the angles of the current step only.
    """

    def __init__(self, window_size, true_positions):
        super().__init__(0.0, window_size=window_size)
        self.true_positions = true_positions

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        if self.true_positions:
            newest = kwargs["position_ids"][0, -1].item()
            positions = torch.arange(newest + 1 - self.window_size, newest + 1)[None]
            kwargs = {**kwargs, "position_embeddings": module.rotary_emb(hidden_states, positions)}
        scores = self.score(module, hidden_states, keys, values, attentions, kwargs)
        kept = scores.topk(int(keys.shape[2] * (1 - self.compression_ratio)), dim=-1).indices.sort().values
        kept = kept.unsqueeze(-1).expand(-1, -1, -1, module.head_dim)
        return keys.gather(2, kept), values.gather(2, kept)


def decode_runs():
    """Name, press inside, how Python writes it, interval, whether it is kvpress as it is."""
    for interval in (8, 1):
        yield f"tova_{interval}", TOVAPress(), "TOVAPress()", interval, True
        yield f"keydiff_{interval}", KeyDiffPress(), "KeyDiffPress()", interval, True
        yield f"knorm_{interval}", KnormPress(), "KnormPress()", interval, True
    yield "snapkv_8", SnapKVPress(window_size=4), "SnapKVPress(window_size=4)", 8, True
    yield "snapkv_in_order_8", InOrder(4, False), "InOrder(window_size=4, true_positions=False)", 8, False
    yield "snapkv_true_positions_8", InOrder(4, True), "InOrder(window_size=4, true_positions=True)", 8, False


def decode_goldens(model, tokens):
    results = {}
    for name, scorer, text, interval, real in decode_runs():
        seen, cache, positions = {}, DynamicCache(), Positions()
        watch_scores(scorer, seen)
        press = DecodingPress(base_press=scorer, compression_interval=interval, target_size=TARGET)
        compressions, gaps = [], []
        with press(model):
            forward(model, tokens[:DECODE_PROMPT], cache, 0)
            before = positions.read(cache, None)
            for step in range(1, DECODE_STEPS + 1):
                position = DECODE_PROMPT + step - 1
                logits = forward(model, [tokens[position]], cache, position)
                after = positions.read(cache, position)
                before = [[rows + [position] for rows in heads] for heads in before]
                evicted = [[sorted(set(a) - set(b)) for a, b in zip(*heads)] for heads in zip(before, after)]
                if step % interval == 0:
                    assert all(len(rows) == TARGET for heads in after for rows in heads)
                    for layer in range(LAYERS):
                        for head in range(KV_HEADS):
                            rows = before[layer][head]
                            kept = torch.tensor([row in set(after[layer][head]) for row in rows])
                            gaps.append(gap(seen[layer][-1][head], kept))
                    compressions.append({"step": step, "evicted": evicted})
                else:
                    assert before == after
                before = after
        results[name] = {
            "press": text,
            "kvpress": real,
            "interval": interval,
            "target": TARGET,
            "first_scores": as_lists({layer: of_layer[0] for layer, of_layer in seen.items()}),
            "gap": min(gaps),
            "compressions": compressions,
            "last_logits": logits[:NEXT_LOGITS].tolist(),
        }
    return results


# ----------------------------------------------------------------------------------------------------------------- main


def versions():
    return {name: version(name) for name in ("kvpress", "transformers", "torch")}


def quiet():
    """Sums do not depend on the machine's cores, and kvpress keeps its advice to itself."""
    torch.set_num_threads(1)
    logging.getLogger("kvpress").setLevel(logging.ERROR)


def goldens(seed):
    """Everything, in torch's default type."""
    model = make_model(seed).to(torch.get_default_dtype())
    order = np.random.default_rng(seed + 1).permutation(VOCABULARY - 1).tolist()
    tokens, next_token, fresh = order[:PROMPT], order[PROMPT], order[PROMPT + 1 :]
    ids = kvzip_ids(tokens, fresh)
    full = DynamicCache()
    logits = forward(model, tokens, full, 0)
    return {
        "versions": versions(),
        "seed": seed,
        "tokens": tokens,
        "next_token": next_token,
        "logits": logits.tolist(),
        "next_logits": forward(model, [next_token], full, len(tokens))[:NEXT_LOGITS].tolist(),
        "kvzip": kvzip_description(ids),
        "prefill": prefill_goldens(model, tokens, next_token) | kvzip_goldens(model, tokens, next_token, ids),
        "decode": {"prompt": DECODE_PROMPT, "steps": DECODE_STEPS, "runs": decode_goldens(model, tokens)},
    }


def compare(single, double, path=""):
    """Largest absolute difference of a number, by path; fails where anything but a float differs."""
    if isinstance(single, dict):
        assert single.keys() == double.keys(), path
        return [worst for key in single for worst in compare(single[key], double[key], f"{path}/{key}")]
    first = single
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(first, float):
        return [] if path.endswith("gap") else [(path, np.abs(np.subtract(single, double)).max().item())]
    assert single == double, f"{path}: float32 and float64 disagree"
    return []


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return value


def write_json(value, path):
    path.write_text(laid_out(rounded(value)) + "\n")


def laid_out(value, key=""):
    """Objects over several lines, arrays on one, so that a change can be read in a diff; compressions one per line."""
    if isinstance(value, dict) and "evicted" not in value:
        lines = (f"{json.dumps(key)}: {laid_out(item, key)}" for key, item in value.items())
        return "{\n" + ",\n".join(lines) + "\n}"
    if key == "compressions":
        return "[\n" + ",\n".join(map(laid_out, value)) + "\n]"
    return json.dumps(value, separators=(",", ":"))


def smallest_gaps(result):
    found = [(of["gap"], name, ratio) for name, e in result["prefill"].items() for ratio, of in e["ratios"].items()]
    return sorted(found + [(of["gap"], name, "decode") for name, of in result["decode"]["runs"].items()])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--search", type=int, help="only try this many seeds and print the smallest gap of each")
    arguments = parser.parse_args()
    quiet()
    if arguments.search:
        for seed in range(arguments.search):
            print(seed, smallest_gaps(goldens(seed))[0], flush=True)
        return
    result = goldens(SEED)
    print("smallest gaps:", *smallest_gaps(result)[:6], sep="\n  ")
    torch.set_default_dtype(torch.float64)
    differences = compare(result, goldens(SEED))
    torch.set_default_dtype(torch.float32)
    print("float32 differs from float64 by:", *sorted(differences, key=lambda d: -d[1]), sep="\n  ")
    write_gguf(make_model(SEED), HERE / "kvpress.gguf")
    write_json(result, HERE / "kvpress.json")


if __name__ == "__main__":
    main()
