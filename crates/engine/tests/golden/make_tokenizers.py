#!/usr/bin/env python3
"""Makes the folder `tokenizers` beside this script: small tokenizers of every kind that is read, and what their own
libraries make of difficult texts.

    pip install tokenizers==0.22.2 sentencepiece==0.2.1
    python make_tokenizers.py

`texts.json` are the texts of make_tokenizer.py. `NAME.json` is a `tokenizer.json` trained on the texts beside this script;
`NAME.cases.json` the tokens of each text, without what a template adds. `sentencepiece.json` holds the pieces, scores and
kinds (numbers as in GGUF) of a sentencepiece model; `space_prefix` says whether it puts a space in front.
"""
import ast
import json
import pathlib
import random

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "tokenizers"
VOCABULARY = 700
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>"]
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")


def texts():
    """The texts of make_tokenizer.py, which needs llama.cpp to run as a whole."""
    tree = ast.parse((HERE / "make_tokenizer.py").read_text(encoding="utf-8"))
    wanted = [
        node for node in tree.body
        if isinstance(node, ast.Assign) or (isinstance(node, ast.FunctionDef) and node.name == "random_texts")
    ]  # fmt: skip
    space = {"random": random}
    exec(compile(ast.Module(wanted, []), "make_tokenizer.py", "exec"), space)
    # The library refuses surrogates and some code points that are no characters; none is in the list.
    return space["TEXTS"] + list(space["random_texts"]())


def corpus():
    return [path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.txt"))] + texts()[:34]


def byte_level(pattern, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL[1:], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    return tokenizer, trainer


def marked(normalizer, pre_tokenizer):
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if normalizer:
        tokenizer.normalizer = normalizers.Sequence(normalizer)
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)], limit_alphabet=120,
        show_progress=False,
    )  # fmt: skip
    return tokenizer, trainer


REPLACE = normalizers.Replace(" ", "▁")


def kinds():
    yield "llama3", *byte_level(LLAMA_3, ignore_merges=True)
    tokenizer, trainer = byte_level(QWEN_2)
    tokenizer.normalizer = normalizers.NFC()
    yield "qwen", tokenizer, trainer
    yield "gpt2", *byte_level(None)
    tokenizer, trainer = byte_level(None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    yield "digits", tokenizer, trainer
    yield "llama2", *marked([normalizers.Prepend("▁"), REPLACE], None)
    yield "mistral", *marked(None, pre_tokenizers.Metaspace("▁", "first", split=False))
    yield "metaspace", *marked(None, pre_tokenizers.Metaspace("▁", "always", split=True))
    yield "gemma", *marked([REPLACE], pre_tokenizers.Split(" ", "merged_with_previous"))


def write_cases(name, cases):
    lines = ",\n".join(json.dumps(case) for case in cases)
    (OUT / f"{name}.cases.json").write_text(f"[\n{lines}\n]\n")


def main():
    OUT.mkdir(exist_ok=True)
    (OUT / "texts.json").write_text(json.dumps(texts(), indent=0) + "\n")
    for name, tokenizer, trainer in kinds():
        # Without a pre-tokenizer whole texts are words, and merges reach over spaces; short ones keep training fast.
        lines = [line for text in corpus() for line in text.splitlines(keepends=True)]
        tokenizer.train_from_iterator(lines, trainer)
        # The bytes of sentencepiece vocabularies are ordinary tokens, and runs of spaces are kept whole in some.
        saved = json.loads(tokenizer.to_str())
        saved["added_tokens"] = [token for token in saved["added_tokens"] if not token["content"].startswith("<0x")]
        tokenizer = Tokenizer.from_str(json.dumps(saved))
        tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
        (OUT / f"{name}.json").write_text(
            json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=True, separators=(",", ":")) + "\n"
        )
        encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids  # noqa: E731
        write_cases(name, [encode(text) for text in texts()])
    for prefix in (True, False):
        name = "sentencepiece" + ("" if prefix else "-plain")
        (OUT / "corpus").write_text("\n".join(corpus()), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(OUT / "corpus"), model_prefix=str(OUT / "model"), model_type="bpe", vocab_size=VOCABULARY,
            byte_fallback=True, character_coverage=0.98, add_dummy_prefix=prefix, normalization_rule_name="identity",
            remove_extra_whitespaces=False, user_defined_symbols=["<tool_call>"] + ([] if prefix else ["▁▁▁▁"]), minloglevel=2, num_threads=1,
        )  # fmt: skip
        model = sentencepiece.SentencePieceProcessor(model_file=str(OUT / "model.model"))
        for left in ("corpus", "model.model", "model.vocab"):
            (OUT / left).unlink()
        size = model.vocab_size()
        kind = lambda id: (  # noqa: E731
            2 if model.is_unknown(id) else 3 if model.is_control(id) else 6 if model.is_byte(id)
            else 4 if model.id_to_piece(id) in ("<tool_call>", "▁▁▁▁") else 1
        )  # fmt: skip
        content = {
            "space_prefix": prefix, "pieces": [model.id_to_piece(id) for id in range(size)],
            "scores": [model.get_score(id) for id in range(size)], "kinds": [kind(id) for id in range(size)],
        }  # fmt: skip
        (OUT / f"{name}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")
        write_cases(name, [model.encode(text) for text in texts()])


main()
