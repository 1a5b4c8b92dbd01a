#!/usr/bin/env python3
"""Makes the learnt part of gdn.prefill's cost model from sweeps of `hyla bench --plans --json FILE`.

A sweep has, for every plan and form of a shape, what it took, what the model expected and the
features of that (plan_features.h). A small network a plan learns the logarithm of the ratio of the
two; its weights become src/ops/gdn_prefill/plan_weights_<plan>.h. Before that it says how often the
choice would be more than 1.05 from the fastest form, on shapes that a network has not seen.

    scripts/fit_plans.py sweep1.json sweep2.json ...        # needs numpy
"""

import argparse
import json
import multiprocessing
import os
import pathlib

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "src/ops/gdn_prefill"
PLANS = {"cuda_fused": "fused", "cuda_split": "split", "cuda_segments": "segments",
         "cuda_relay": "relay", "cuda_steps": "steps", "cuda_block": "block", "cuda_vk": "vk",
         "cuda_kv": "vk"}
HIDDEN = (48, 24)  # as in plan_network.h
UNIT = 256  # a weight of one
FAR = 4.0  # deviations: further off, a feature counts as that
FOLDS = 5
GOOD = 1.05


class Times:
    """One line for every plan and form that was timed."""

    def __init__(self, paths):
        shape, plan, us, model, features, seen, keys = [], [], [], [], [], [], set()
        shapes = 0
        for path in paths:
            sweep = json.loads(pathlib.Path(path).read_text())
            keys.add(sweep["features_key"])
            for row in sweep["results"]:
                shapes += 1
                for one in row["plans"]:
                    if one["us"] == 0:
                        continue
                    # The second: what the model would say if only the longest were known.
                    for look in (one["look"], one["assumed"]):
                        if not look:
                            continue
                        shape.append(shapes)
                        plan.append(PLANS[one["impl"].split(" ")[0]])
                        us.append(one["us"])
                        model.append(look["model_us"])
                        features.append(look["features"])
                        seen.append(look is one["look"])
        if len(keys) != 1:
            raise SystemExit(f"sweeps of different features: {sorted(keys)}")
        self.key = keys.pop()
        self.shape, self.plan, self.seen = np.array(shape), np.array(plan), np.array(seen)
        self.us, self.model = np.array(us), np.array(model)
        self.features = np.array(features, np.float32)
        fastest = np.full(shapes + 1, np.inf)
        np.minimum.at(fastest, self.shape, self.us)
        self.ratio = self.us / fastest[self.shape]
        self.error = np.log(self.us / self.model)
        # Forms that nobody would take count less, and so does what was not the case.
        self.weight = np.select([self.ratio > 1.35, self.ratio > 1.15], [0.2, 0.6], 1.0)
        self.weight = self.weight * np.where(self.seen, 1.0, 0.5) * (self.ratio < 2)


class Network:
    def __init__(self, features, error, weight, seed=0, epochs=300, batch=256, rate=4e-3,
                 decay=0.5):
        random = np.random.default_rng(seed)
        self.mean = features.mean(0)
        deviation = features.std(0)
        self.per_deviation = np.where(deviation < 1e-6, 0, 1 / np.maximum(deviation, 1e-6))
        self.scale = float(np.sqrt((weight * error**2).sum() / weight.sum()))
        inputs, wanted = self.normalised(features), (error / self.scale).astype(np.float32)
        weight = (weight / weight.mean()).astype(np.float32)
        sizes = (features.shape[1], *HIDDEN, 1)
        self.values = []
        for rows, columns in zip(sizes, sizes[1:]):
            self.values.append(
                random.normal(0, np.sqrt(2 / rows), (rows, columns)).astype(np.float32))
            self.values.append(np.zeros(columns, np.float32))
        means = [np.zeros_like(v) for v in self.values]
        squares = [np.zeros_like(v) for v in self.values]
        steps, step = epochs * -(-len(inputs) // batch), 0
        for _ in range(epochs):
            order = random.permutation(len(inputs))
            for first in range(0, len(inputs), batch):
                rows, step = order[first:first + batch], step + 1
                now = rate * min(step / 50, 0.5 * (1 + np.cos(np.pi * step / steps)))
                for i, slope in self.slopes(inputs[rows], wanted[rows], weight[rows]):
                    means[i] += 0.1 * (slope - means[i])
                    squares[i] += 0.001 * (slope * slope - squares[i])
                    move = means[i] / (1 - 0.9**step)
                    move = move / (np.sqrt(squares[i] / (1 - 0.999**step)) + 1e-8)
                    self.values[i] -= now * (move + (decay * self.values[i] if i % 2 == 0 else 0))

    def normalised(self, features):
        return np.clip((features - self.mean) * self.per_deviation, -FAR, FAR).astype(np.float32)

    def layers(self, inputs):
        found = [inputs]
        for i in range(0, len(self.values), 2):
            sums = found[-1] @ self.values[i] + self.values[i + 1]
            found.append(sums if i + 2 == len(self.values) else np.maximum(sums, 0))
        return found

    def slopes(self, inputs, wanted, weight):
        found = self.layers(inputs)
        slope = ((found[-1][:, 0] - wanted) * weight / len(inputs))[:, None]
        result = []
        for layer in range(len(self.values) // 2 - 1, -1, -1):
            result.append((2 * layer, found[layer].T @ slope))
            result.append((2 * layer + 1, slope.sum(0)))
            if layer > 0:
                slope = (slope @ self.values[2 * layer].T) * (found[layer] > 0)
        return result

    def errors(self, features):
        return self.layers(self.normalised(features))[-1][:, 0] * self.scale

    def rounded(self):
        """As it stands in the header."""
        self.values = [np.round(v * UNIT) / UNIT for v in self.values]
        self.mean, self.per_deviation = (np.array([float(f"{x:.6g}") for x in v])
                                         for v in (self.mean, self.per_deviation))
        self.scale = float(f"{self.scale:.6g}")
        return self


def fit(job):
    times, plan, fold = job
    mine = (times.plan == plan) & (times.weight > 0)
    if fold is not None:
        mine &= times.shape % FOLDS != fold
    return Network(times.features[mine], times.error[mine], times.weight[mine]).rounded()


def missed(times, errors):
    """Shapes whose plan would be more than GOOD from the fastest, of how many, and the worst."""
    expected = np.where(times.seen, times.model * np.exp(errors), np.inf)
    order = np.lexsort((expected, times.shape))
    first = order[np.r_[True, np.diff(times.shape[order]) > 0]]
    return (times.ratio[first] > GOOD).sum(), len(first), times.ratio[first].max()


def write(plan, network, times):
    def numbers(values, text):
        return "{" + ", ".join(text(v) for v in values) + "}"

    weights = np.concatenate([v.ravel() for v in network.values])
    real = lambda v: np.format_float_positional(np.float32(v), unique=True, trim="0") + "f"
    lines = [
        "// Made by scripts/fit_plans.py.",
        "#pragma once",
        "",
        '#include "ops/gdn_prefill/plan_network.h"',
        "",
        "namespace hyla::gdn {",
        "",
        f"// Of {len(np.unique(times.shape[times.plan == plan]))} shapes.",
        f"inline constexpr PlanNetwork k{plan.capitalize()}Network = {{",
        f"{times.key}u,",
        f"{real(network.scale)},",
        numbers(network.mean, real) + ",",
        numbers(network.per_deviation, real) + ",",
        numbers(np.round(weights * UNIT).astype(int), str),
        "};",
        "",
        "}  // namespace hyla::gdn",
    ]
    (FOLDER / f"plan_weights_{plan}.h").write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+")
    parser.add_argument("--no-write", action="store_true", help="only judge")
    parser.add_argument("--no-judge", action="store_true", help="only write")
    options = parser.parse_args()
    times = Times(options.sweeps)
    plans = list(dict.fromkeys(PLANS.values()))
    print("by the model: %d of %d shapes missed, the worst %.3f" %
          missed(times, np.zeros(len(times.us))))
    with multiprocessing.Pool() as pool:
        if not options.no_judge:
            jobs = [(times, plan, fold) for plan in plans for fold in range(FOLDS)]
            errors = np.zeros(len(times.us))
            for (_, plan, fold), network in zip(jobs, pool.imap(fit, jobs)):
                unseen = (times.plan == plan) & (times.shape % FOLDS == fold)
                errors[unseen] = network.errors(times.features[unseen])
            print("with what was learnt, unseen: %d of %d, the worst %.3f" % missed(times, errors))
            for plan in plans:
                near = (times.plan == plan) & (times.ratio < 1.35) & times.seen
                print("  %-9s error %.4f, of the model %.4f" %
                      (plan, (times.error - errors)[near].std(), times.error[near].std()))
        if not options.no_write:
            for plan, network in zip(plans, pool.imap(fit, [(times, p, None) for p in plans])):
                write(plan, network, times)


if __name__ == "__main__":
    main()
