"""Computes statistics with SciPy and NumPy, for tests/it/statistics.rs.

Usage: python3 make_statistics.py        (needs numpy and scipy; writes statistics.json beside this script)
"""
import json
import pathlib

import numpy
import scipy
from scipy import stats

HERE = pathlib.Path(__file__).parent
dice = numpy.random.default_rng(5)


def sample(length, shift):
    """Differences of bounded scores with many ties, as benchmarks give them."""
    return (dice.choice([-1, -0.5, 0, 0, 0, 0.25, 0.5, 1], length) + shift).tolist()


def t_test(values):
    result = stats.ttest_1samp(values, 0.0)
    return {"differences": values, "t": float(result.statistic), "p": float(result.pvalue)}


def correlation(length, levels):
    x = dice.integers(0, levels, length).astype(float)
    y = x + dice.integers(0, 2 * levels, length)
    return {"x": x.tolist(), "y": y.tolist(), "spearman": float(stats.spearmanr(x, y).statistic),
            "pearson": float(stats.pearsonr(x, y).statistic)}


def bootstrap(tasks):
    """Bounds with NumPy's own draws: they agree with ours only up to the noise of resampling."""
    means = numpy.mean([numpy.asarray(t)[dice.integers(0, len(t), (40000, len(t)))].mean(axis=1) for t in tasks], axis=0)
    return {"tasks": tasks, "mean": float(numpy.mean([numpy.mean(t) for t in tasks])),
            "low": float(numpy.percentile(means, 2.5)), "high": float(numpy.percentile(means, 97.5)), "sd": float(means.std())}


def entropy(length):
    scores = dice.random(length).astype(numpy.float32)
    share = scores.astype(float) / scores.astype(float).sum()
    return {"scores": [float(s) for s in scores], "entropy": float(stats.entropy(share) / numpy.log(length))}


def quantiles(length):
    values = numpy.sort(dice.normal(size=length))
    return {"values": values.tolist(), "quantiles": [float(numpy.percentile(values, q)) for q in [0, 2.5, 25, 50, 75, 97.5, 100]]}


def top_sets(length, budget):
    """Raw and smoothed scores over some steps, with Jaccard and churn of their top sets (stable sort: earlier ties win)."""
    raw = dice.integers(0, 40, (8, length)).astype(float)
    ema = [raw[0]]
    for row in raw[1:]:
        ema.append(0.75 * ema[-1] + 0.25 * row)
    def top(row):
        return set(numpy.argsort(-row, kind="stable")[:budget].tolist())
    tops = [(top(r), top(e)) for r, e in zip(raw, ema)]
    return {"budget": budget, "raw": raw.tolist(), "ema": [e.tolist() for e in ema],
            "jaccard": [len(r & e) / len(r | e) for r, e in tops],
            "raw_churn": [len(a[0] - b[0]) / budget for a, b in zip(tops, tops[1:])],
            "ema_churn": [len(a[1] - b[1]) / budget for a, b in zip(tops, tops[1:])],
            "spearman": [float(stats.spearmanr(r, e).statistic) for r, e in zip(raw, ema)]}


result = {
    "made_with": {"numpy": numpy.__version__, "scipy": scipy.__version__},
    "t_tests": [t_test(sample(n, s)) for n, s in [(3, 0.1), (5, 0), (8, 0.3), (30, 0.02), (200, 0.05), (503, 0.01), (1500, 0.1)]]
    + [t_test([0.1, 0.1, 0.1, 0.1000001]), t_test([1e-9, -1e-9, 3e-9])],
    "correlations": [correlation(n, k) for n, k in [(5, 3), (20, 4), (100, 1000), (300, 7)]],
    "bootstraps": [bootstrap([sample(60, 0.05)]), bootstrap([sample(200, 0), sample(20, 0.1), sample(90, -0.1)])],
    "entropies": [entropy(n) for n in [2, 10, 300]],
    "quantiles": [quantiles(n) for n in [1, 2, 10, 41]],
    "top_sets": [top_sets(30, 6), top_sets(12, 11)],
}
(HERE / "statistics.json").write_text(json.dumps(result, indent=0) + "\n", encoding="utf-8")
