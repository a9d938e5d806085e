#!/usr/bin/env python3
"""Makes the tokenizer golden files beside this script with llama.cpp as the judge.

    pip install llama-cpp-python
    python make_tokenizer.py MODEL.gguf tokenizer-NAME.json

The cases are fixed below (the random ones by a seed), so the same model gives the same file.
"""

import ctypes
import json
import random
import sys

import llama_cpp

# Not `</s>`: llama.cpp takes it for a control token in every vocabulary, although in some it is ordinary text.
TEXTS = [
    "",
    " ",
    "Hello, world!",
    "Hello  world   with    runs     of      spaces\t\ttabs \t mixed\n\n\nlines\r\n  end  ",
    "  leading and trailing  ",
    "\n",
    "\n\n",
    " \n \n",
    "a\n\n\n  b",
    "It's they'll WE'VE I'M you'd 'sound ''quoted'' don't",
    "0 1 12 123 1234 12345 3.14159 1,000,000 2024-01-31 0x1F 1e-5 ½ ² ٣ Ⅷ",
    "def f(x: int) -> str:\n    \"\"\"Doc.\"\"\"\n    if x != 0 and x >= -1:\n\t\treturn f\"{x!r:>10}\"\n    return None  # done\n",
    "fn main() { let v: Vec<u8> = (0..=255).collect(); println!(\"{:?}\", &v[1..]); }",
    "<html><body class='a'>&nbsp;</body></html> <!-- comment --> <s> [INST] <0x0A>",
    "Das Mädchen läuft über die Straße. Größe, naïve, façade, Ångström, coöperate",
    "e\u0301 combining, \u0915\u094d\u0937\u093f Hindi: नमस्ते दुनिया",
    "Быстрая коричневая лиса. Ελληνικά. עברית. العربية ١٢٣",
    "中文分词测试，今天天气很好。日本語のテキスト、カタカナとひらがな。한국어 텍스트입니다.",
    "ไทย ภาษาไทย Tiếng Việt lời chào ქართული հայերեն አማርኛ",
    "emoji 😀👍🏽👨‍👩‍👧‍👦🇩🇪 ❤️ ☕️ 🏳️‍🌈!",
    "math: ∑_{i=0}^{∞} x² ≠ √2 × π ≈ 4.44 → ∀ε>0 ∃δ",
    "zero\u200bwidth\u00a0nbsp\u3000ideographic\u2028line\ufeffbom\u0085next",
    "\u0000\u0001\u007f\u0080 control bytes",
    "CamelCaseIdentifier snake_case_name kebab-case SCREAMING_CASE x86_64 v1.2.3-rc.4",
    "https://example.org/path?query=1&b=%20#frag user@example.org C:\\dir\\file.txt ~/bin",
    "!!!???...---___***###@@@$$$%%%^^^&&&((())){{{}}}[[[]]]",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " " * 70 + "x" + "\n" * 20 + "\t" * 9,
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|endoftext|> x <|im_end|>y<|im_sep|><|unknown|><tool_call>{}</tool_call>",
    "<|im_start|",
    "supercalifragilisticexpialidocious antidisestablishmentarianism pneumonoultramicroscopic",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𠜎𠜱 \U0010ffff",
]

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz     ",
    "ABCabc123 \n\t'.,!-_<>|",
    "äöüßéñçàœ АБВгд 中文字 日本 한글 😀🎉 ",
    " \n\r\t\u00a0",
    "0123456789.,-+ ",
]


def random_texts():
    choose = random.Random(20250101)
    for alphabet in ALPHABETS:
        for length in (3, 8, 20, 60, 200):
            for _ in range(3):
                yield "".join(choose.choice(alphabet) for _ in range(length))
    for _ in range(40):
        yield "".join(
            chr(choose.choice([choose.randrange(32, 127), choose.randrange(0xA0, 0xD800), choose.randrange(0x1F300, 0x1FAFF)]))
            for _ in range(choose.randrange(1, 40))
        )


def piece(model, token):
    buffer = ctypes.create_string_buffer(4096)
    length = llama_cpp.llama_token_to_piece(model._model.vocab, token, buffer, len(buffer), 0, True)
    assert length >= 0, token
    return buffer.raw[:length]


def main():
    model_path, output = sys.argv[1:]
    model = llama_cpp.Llama(model_path, vocab_only=True, verbose=False)
    cases = []
    for text in TEXTS + list(random_texts()):
        case = {"text": text}
        for name, special in (("plain", False), ("special", True)):
            case[name] = model.tokenize(text.encode(), add_bos=False, special=special)
        if case["special"] == case["plain"]:
            del case["special"]
        cases.append(case)
    count = model.n_vocab()
    step = max(1, count // 300)
    pieces = {}
    for token in range(0, count, step):
        pieces[str(token)] = piece(model, token).hex()
    with open(output, "w", encoding="utf-8") as file:
        file.write('{\n"bos": %d,\n"eos": %d,\n"vocabulary": %d,\n"pieces": %s,\n"cases": [\n' % (
            model.token_bos(), model.token_eos(), count, json.dumps(pieces)))
        file.write(",\n".join(json.dumps(case, ensure_ascii=True) for case in cases))
        file.write("\n]\n}\n")


main()
