"""Asks llama.cpp what it computes on a model file, so that the engine can be compared with it.

Usage: python3 make_parity.py MODEL.gguf OUT.json [--flash-attn] [--batch 512] [--threads 2] [--repack on|off]
Needs: pip install llama-cpp-python numpy. The texts beside this script come from make_texts.py.

Golden settings: f16 keys and values, flash attention off, batch 512, 2 threads. The options exist to measure how far
llama.cpp differs from itself between settings, which is what a tolerance has to allow for.

Written to OUT.json:
  prompts[]     tokens (beginning-of-sequence token as the model says, special tokens recognised), the 32 greedy tokens that
                follow, and for the first 17 of them `steps`: the ten most probable tokens with natural-log probabilities
                and `gap`, the distance between the first two (step 0 is the token straight after the prompt)
  perplexity[]  windows of `context` tokens over perplexity.txt, as the llama-perplexity tool scores them: the first token of
                each window is replaced by the beginning-of-sequence token if the model adds one; positions context/2 to
                context-2 each predict the next token; a last partial window is dropped
  tokenizer[]   strings that are easy to tokenize wrongly, and their tokens
"""
import argparse
import ctypes
import hashlib
import json
import math
import pathlib
import sys

import llama_cpp
import numpy

GREEDY_TOKENS, REPORTED_STEPS, TOP = 32, 17, 10
HERE = pathlib.Path(__file__).resolve().parent
TOKENIZER_CASES = [
    "Hello, world!", " leading space", "trailing space ", "two  spaces,   three", "line\nbreak\n\nparagraph\r\n", "\ttab\t\tindent",
    "I'll don't WE'VE it's", "1234567890 3.14159 1,000,000", "snake_case camelCase kebab-case", "for (int i = 0; i < n; ++i) { a[i] += 1; }",
    "Zażółć gęślą jaźń; crème brûlée; Straße", "你好，世界。こんにちは", "Привет, мир", "🙂🚀👩‍👩‍👧 emoji", "e\u0301 versus \u00e9",
    "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>", "a <|im_end|> b", "", " ", "\n", "...!!!???", "x" * 40, "\u00a0non-breaking\u2003space",
]


class Model:
    def __init__(self, path, options):
        llama_cpp.llama_backend_init()
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.quiet, ctypes.c_void_p(0))
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        model_options.use_extra_bufts = options.repack == "on"
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_options)
        if not self.model:
            sys.exit(f"llama.cpp cannot read {path}")
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.words = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
        self.adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(self.vocabulary))
        self.bos = llama_cpp.llama_vocab_bos(self.vocabulary)
        self.options = options

    def tokens(self, text):
        raw = text.encode("utf-8")
        room = len(raw) + 16
        buffer = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self.vocabulary, raw, len(raw), buffer, room, True, True)
        assert count >= 0, "the token buffer is too small"
        return list(buffer[:count])

    def text(self, tokens):
        out = b""
        for token in tokens:
            buffer = ctypes.create_string_buffer(256)
            size = llama_cpp.llama_token_to_piece(self.vocabulary, token, buffer, 256, 0, True)
            out += buffer.raw[:size]
        return out.decode("utf-8", "replace")

    def context(self, size):
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = size
        options.n_batch = options.n_ubatch = self.options.batch
        options.n_threads = options.n_threads_batch = self.options.threads
        options.flash_attn_type = 1 if self.options.flash_attn else 0
        options.type_k = options.type_v = llama_cpp.GGML_TYPE_F16
        options.no_perf = True
        return Context(self, llama_cpp.llama_init_from_model(self.model, options))


class Context:
    def __init__(self, model, handle):
        assert handle, "llama.cpp cannot create a context"
        self.model, self.handle, self.held = model, handle, 0

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.handle), True)
        self.held = 0

    def feed(self, tokens, wanted):
        """Appends `tokens`; yields (index in tokens, log-probabilities in f64) for every index in `wanted`."""
        step = self.model.options.batch
        for start in range(0, len(tokens), step):
            piece = tokens[start : start + step]
            batch = llama_cpp.llama_batch_init(len(piece), 0, 1)
            batch.n_tokens = len(piece)
            for row, token in enumerate(piece):
                batch.token[row], batch.pos[row] = token, self.held + row
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
                batch.logits[row] = start + row in wanted
            assert llama_cpp.llama_decode(self.handle, batch) == 0, "llama_decode failed"
            self.held += len(piece)
            for row in range(len(piece)):
                if start + row in wanted:
                    logits = llama_cpp.llama_get_logits_ith(self.handle, row)
                    yield start + row, log_softmax(numpy.ctypeslib.as_array(logits, (self.model.words,)))
            llama_cpp.llama_batch_free(batch)

    def close(self):
        llama_cpp.llama_free(self.handle)


def log_softmax(logits):
    logits = logits.astype(numpy.float64)
    logits -= logits.max()
    return logits - math.log(numpy.exp(logits).sum())


def measure_prompt(model, name):
    tokens = model.tokens((HERE / f"{name}.txt").read_text(encoding="utf-8"))
    context = model.context(len(tokens) + GREEDY_TOKENS + 8)
    [(_, logs)] = context.feed(tokens, {len(tokens) - 1})
    greedy, steps = [], []
    for step in range(GREEDY_TOKENS):
        best = numpy.argsort(-logs, kind="stable")[:TOP]
        if step < REPORTED_STEPS:
            steps.append({
                "top": [[int(token), round(float(logs[token]), 5)] for token in best],
                "gap": round(float(logs[best[0]] - logs[best[1]]), 5),
            })
        greedy.append(int(best[0]))
        if step + 1 < GREEDY_TOKENS:
            [(_, logs)] = context.feed(greedy[-1:], {0})
    context.close()
    return {
        "name": name, "file": f"{name}.txt", "prompt_tokens": len(tokens), "tokens": tokens, "greedy": greedy,
        "greedy_text": model.text(greedy), "smallest_gap_16": min(step["gap"] for step in steps[:16]), "steps": steps,
    }


def measure_perplexity(model, tokens, size):
    context, first, chunks = model.context(size), size // 2, []
    for start in range(0, len(tokens) - size + 1, size):
        window = tokens[start : start + size]
        fed = [model.bos] + window[1:] if model.adds_bos else window
        context.clear()
        nll = 0.0
        for index, logs in context.feed(fed, set(range(first, size - 1))):
            nll -= float(logs[window[index + 1]])
        chunks.append(nll / (size - 1 - first))
    context.close()
    mean = sum(chunks) / len(chunks)
    return {
        "context": size, "chunks": len(chunks), "scored_tokens": len(chunks) * (size - 1 - first),
        "nll": round(mean, 6), "perplexity": round(math.exp(mean), 5), "chunk_nll": [round(chunk, 6) for chunk in chunks],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--flash-attn", action="store_true")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repack", choices=["on", "off"], default="on", help="llama.cpp's repacked weight layouts")
    parser.add_argument("--revision", default="", help="what `llama-bench --version` says, for the record")
    options = parser.parse_args()
    model = Model(options.model, options)
    text = (HERE / "perplexity.txt").read_text(encoding="utf-8")
    tokens = model.tokens(text)
    report = {
        "reference": {
            "llama_cpp_python": llama_cpp.__version__, "llama_cpp": options.revision,
            "system": llama_cpp.llama_print_system_info().decode().strip(),
            "kv_type": "f16", "flash_attn": options.flash_attn, "batch": options.batch, "threads": options.threads,
            "repack": options.repack,
        },
        "model_sha256": hashlib.sha256(options.model.read_bytes()).hexdigest(),
        "adds_bos": model.adds_bos,
        "prompts": [measure_prompt(model, name) for name in ("parity-short", "parity-500", "parity-2000")],
        "perplexity_file": {"file": "perplexity.txt", "tokens": len(tokens), "sha256": hashlib.sha256(text.encode()).hexdigest()},
        "perplexity": [measure_perplexity(model, tokens, size) for size in (512, 1024)],
        "tokenizer": [{"text": case, "tokens": model.tokens(case)} for case in TOKENIZER_CASES],
    }
    options.out.write_text(render(report), encoding="utf-8")


def render(report):
    """JSON with one line per list of numbers, so that diffs stay readable."""
    text = json.dumps(report, indent=1, ensure_ascii=True)
    lines, buffer, depth = [], "", 0
    for line in text.split("\n"):
        bare = line.strip()
        flat = bare in ("[", "]", "],") or bare[:1] in "-0123456789" or bare.endswith(": [")
        if depth == 0 and bare.endswith(("tokens\": [", "greedy\": [", "chunk_nll\": [", "top\": [")):
            buffer, depth = line, 1
        elif depth and flat:
            depth += (bare == "[") - (bare in ("]", "],"))
            buffer += bare + ("" if bare == "[" or depth == 0 else "")
            if depth == 0:
                lines.append(buffer.replace(",[", ", ["))
                buffer = ""
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
