"""Scores random texts with the original metrics, for tests/it/metrics.rs.

Usage: python3 make_metrics.py LONGBENCH        (a checkout of THUDM/LongBench; writes metrics.json beside this script)

Needs the packages rouge 1.0.1, fuzzywuzzy 0.18, jieba 0.42.1 and numpy, and no python-Levenshtein. jieba gets the small
invented dictionary and tables of the folder `jieba` instead of its own, so that the test needs nothing but this repository.
"""
import difflib
import importlib.util
import json
import pathlib
import random
import sys

import jieba
import numpy
from jieba import finalseg
from rouge import Rouge

HERE = pathlib.Path(__file__).parent
CASES = 60

WORDS = ["a", "an", "the", "The", "theme", "cat", "Cat,", "sat", "mat.", "3.5", "on", "well-known", "‘Paris’", "É", "a\u0301",
         "_a", "x²", "٣", "12", "...", ".", "\n", "\t", "\u001c", "\u00a0", "\u0085", "naïve", "İ", "ΣΑΣ", "it's", "段a"]
NUMBERS = ["Paragraph 7", "7", "17", "07", "Paragraph 3.", "٧", "paragraph", " and ", "7th", "\n", "30", "3"]
CODE = ["x", " = ", "foo", "(", ")", "1", "\n", "\n", "# note", "// ", "`", "return ", "    ", "é", "ab"]
CLASSES = ["city", "other", "some other city", "other city", "state", "s", "country"]
CHINESE = "甲乙丙丁戊己庚辛壬癸子丑"
CHINESE_MORE = ["，", "。", "《", "》", "a", "B12", "3.5%", "1.a", "x-y", "+", "\n", "\r\n", " ", "é", ".", "％"]


def load(path):
    spec = importlib.util.spec_from_file_location("longbench_metrics", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use_small_dictionary():
    tokenizer = jieba.Tokenizer(str(HERE / "jieba" / "dict.txt"))
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(open(HERE / "jieba" / "dict.txt", "rb"))
    tokenizer.initialized = True
    jieba.cut = tokenizer.cut
    for name in ["start", "trans", "emit"]:
        table = {}
        exec((HERE / "jieba" / "finalseg" / f"prob_{name}.py").read_text(encoding="utf-8"), table)
        setattr(finalseg, f"{name}_P", table["P"])


def main(longbench):
    use_small_dictionary()
    original = load(pathlib.Path(longbench) / "LongBench" / "metrics.py")
    dice = random.Random(5)

    def text(pieces, most, glue=" "):
        return glue.join(dice.choice(pieces) for _ in range(dice.randint(0, most)))

    def pairs(pieces, most, glue=" "):
        return [(text(pieces, most, glue), text(pieces, most, glue)) for _ in range(CASES)]

    def chinese():
        return [("".join(dice.choice(CHINESE) if dice.random() < 0.8 else dice.choice(CHINESE_MORE)
                         for _ in range(dice.randint(0, 30))),
                 "".join(dice.choice(CHINESE) if dice.random() < 0.8 else dice.choice(CHINESE_MORE)
                         for _ in range(dice.randint(0, 30)))) for _ in range(CASES)]

    long_lines = [("".join(dice.choice("abcdefgh ()=") for _ in range(dice.randint(150, 260))),
                   "".join(dice.choice("abcdefgh ()=" if dice.random() < 0.9 else "ijklmnop") for _ in range(dice.randint(190, 260))))
                  for _ in range(20)]
    long_lines += [(line[:90] + "zz" + line[95:], line) for _, line in long_lines]

    def scored(metric, cases, **extra):
        return [{"pred": p, "ref": r, "expected": metric(p, r, **extra)} for p, r in cases]

    classification = []
    for _ in range(CASES):
        classes = [dice.choice(CLASSES) for _ in range(dice.randint(1, 7))]
        pred = text(CLASSES, 4)
        ref = dice.choice([c for c in classes if c in pred] or CLASSES)
        classification.append({"pred": pred, "ref": ref, "classes": classes,
                               "expected": original.classification_score(pred, ref, all_classes=classes)})
    cuts = [{"text": p, "words": list(jieba.cut(p))} for p, _ in chinese()]
    rouge = []
    for p, r in pairs(WORDS, 20):
        try:
            expected = Rouge().get_scores(p, r)[0]
        except ValueError:
            expected = None
        rouge.append({"pred": p, "ref": r, "expected": expected})
    means = []
    for length in [1, 2, 7, 8, 9, 15, 16, 100, 127, 128, 129, 137, 200, 255, 256, 257, 300, 500, 1000]:
        values = [round(dice.random(), 4) for _ in range(length)]
        # The first is the task score of LongBench, the second a bin of LongBench-E.
        means.append({"values": values, "task": round(100 * sum(values, 0.0) / len(values), 2),
                      "bin": float(round(100 * numpy.mean(values), 2))})
    # Scores that lie near or on a tie of the second decimal, where the two roundings part.
    for n in range(40):
        value = (dice.randint(0, 9999) + 0.5) / 10000
        means.append({"values": [value], "task": round(100 * value / 1, 2), "bin": float(round(100 * numpy.mean([value]), 2))})
    result = {
        "made_with": {"python": sys.version.split()[0], "numpy": numpy.__version__, "jieba": jieba.__version__},
        "qa_f1": scored(original.qa_f1_score, pairs(WORDS, 12)),
        "rouge_l": scored(original.rouge_score, pairs(WORDS, 30)),
        "rouge": rouge,
        "code_similarity": scored(original.code_sim_score, pairs(CODE, 14, "") + long_lines),
        "retrieval": scored(original.retrieval_score, [(text(NUMBERS, 6), "Paragraph 7") for _ in range(CASES)]),
        "count": scored(original.count_score, [(text(NUMBERS, 6), "7") for _ in range(CASES)]),
        "classification": classification,
        "chinese_words": cuts,
        "qa_f1_chinese": scored(original.qa_f1_zh_score, chinese()),
        "rouge_l_chinese": scored(original.rouge_zh_score, chinese()),
        "means": means,
    }
    (HERE / "metrics.json").write_text(json.dumps(result, ensure_ascii=True, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    assert difflib  # fuzzywuzzy falls back on it
    main(sys.argv[1])
