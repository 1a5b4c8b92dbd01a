#!/usr/bin/env python3
"""Makes the learnt part of gdn.prefill's cost model from sweeps of `hyla bench --plans --json FILE`.

A sweep has, for every plan and form of a shape, what it took, what the model expected and the
features of that (plan_features.h). A small network a plan learns the logarithm of the ratio of the
two; its weights become src/ops/gdn_prefill/plan_weights_<plan>.h. Before that it says how often the
choice would be more than 1.05 from the fastest form, on shapes that a network has not seen.

    scripts/fit_plans.py sweep1.json sweep2.json ...        # needs numpy
    scripts/fit_plans.py --on split,relay sweep.json ...    # these learn on from what they know
    scripts/fit_plans.py --together sweep.json ...          # all do, by what their choice costs
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import re

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
    """self.values: weights and what is added to their sums, layer after layer."""

    @staticmethod
    def new(features, error, weight):
        self, random = Network(), np.random.default_rng(0)
        self.shapes = ""
        self.mean = features.mean(0)
        deviation = features.std(0)
        self.per_deviation = np.where(deviation < 1e-6, 0, 1 / np.maximum(deviation, 1e-6))
        self.scale = float(np.sqrt((weight * error**2).sum() / weight.sum()))
        self.values = []
        for rows, columns in layer_sizes(features.shape[1]):
            self.values.append(
                random.normal(0, np.sqrt(2 / rows), (rows, columns)).astype(np.float32))
            self.values.append(np.zeros(columns, np.float32))
        self.learn(features, error, weight, [np.zeros_like(v) for v in self.values])
        return self

    @staticmethod
    def on(features, error, weight, plan, key):
        """From the weights as they are, and not far from them: they know other shapes."""
        self = Network.read(plan, key)
        self.learn(features, error, weight, [v.copy() for v in self.values], epochs=80, rate=3e-4,
                   pull=0.3)
        return self

    @staticmethod
    def read(plan, key):
        text = (FOLDER / f"plan_weights_{plan}.h").read_text()
        self = Network()
        self.shapes = re.search(r"// Of (.*) shapes", text)[1] + " and "
        numbers = [float(x) for x in re.findall(r"-?[0-9.]+", text.partition("Network = {")[2])]
        if int(numbers[0]) != key:
            raise SystemExit(f"the weights of {plan} are of other features")
        self.scale, count = numbers[1], len(re.findall("f[,}]", text)) // 2
        self.mean, self.per_deviation = np.array(numbers[2:2 + 2 * count]).reshape(2, count)
        weights = np.array(numbers[2 + 2 * count:], np.float32) / UNIT
        self.values = []
        for rows, columns in layer_sizes(count):
            layer, added, weights = np.split(weights, [rows * columns, (rows + 1) * columns])
            self.values += [layer.reshape(rows, columns), added]
        return self

    def learn(self, features, error, weight, home, epochs=300, batch=256, rate=4e-3, pull=0.5):
        """`home`: where weights are pulled to."""
        random = np.random.default_rng(0)
        inputs, wanted = self.normalised(features), (error / self.scale).astype(np.float32)
        weight = (weight / weight.mean()).astype(np.float32)
        descent = Descent(self, home, pull)
        for rows, part in batches(random, len(inputs), epochs, batch):
            found = self.layers(inputs[rows])
            slope = (found[-1][:, 0] - wanted[rows]) * weight[rows] / len(rows)
            descent.step(found, slope, rate * part)

    def normalised(self, features):
        return np.clip((features - self.mean) * self.per_deviation, -FAR, FAR).astype(np.float32)

    def layers(self, inputs):
        found = [inputs]
        for i in range(0, len(self.values), 2):
            sums = found[-1] @ self.values[i] + self.values[i + 1]
            found.append(sums if i + 2 == len(self.values) else np.maximum(sums, 0))
        return found

    def slopes(self, found, slope):
        """Of all values, from that of the results."""
        slope, result = slope[:, None].astype(np.float32), []
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


class Descent:
    """The steps of a network downhill (Adam), its weights pulled to `home`."""

    def __init__(self, network, home, pull):
        self.network, self.home, self.pull, self.steps = network, home, pull, 0
        self.means = [np.zeros_like(v) for v in network.values]
        self.squares = [np.zeros_like(v) for v in network.values]

    def step(self, found, slope, rate):
        self.steps += 1
        values = self.network.values
        for i, slope in self.network.slopes(found, slope):
            self.means[i] += 0.1 * (slope - self.means[i])
            self.squares[i] += 0.001 * (slope * slope - self.squares[i])
            move = self.means[i] / (1 - 0.9**self.steps)
            move = move / (np.sqrt(self.squares[i] / (1 - 0.999**self.steps)) + 1e-8)
            if i % 2 == 0:
                move += self.pull * (values[i] - self.home[i])
            values[i] -= rate * move


def batches(random, count, epochs, batch):
    """Numbers below `count` in an order of their own every time, and what of the rate is left."""
    steps, step = epochs * -(-count // batch), 0
    for _ in range(epochs):
        order = random.permutation(count)
        for first in range(0, count, batch):
            step += 1
            part = min(step / 50, 0.5 * (1 + np.cos(np.pi * step / steps)))
            yield order[first:first + batch], part


def learn_together(times, mine, epochs=40, batch=64, rate=1e-3, pull=0.3, kept=0.2, cost=2.0,
                   blur=0.04):
    """All networks, from their weights on.

    What all forms of a shape are off by alike costs little, so errors count as far as they differ
    within a shape (and a fifth as they are). Beside that counts what the choice would cost: the
    mean regret, its square in units of 0.05, if a form were drawn the more often the faster it is
    expected to be.
    """
    plans = sorted(set(PLANS.values()))
    networks = [Network.read(plan, times.key) for plan in plans]
    descents = [Descent(n, [v.copy() for v in n.values], pull) for n in networks]
    which = np.array([plans.index(plan) for plan in times.plan])
    inputs = np.zeros(times.features.shape, np.float32)
    for i, network in enumerate(networks):
        inputs[which == i] = network.normalised(times.features[which == i])
    # Lines of a shape one after another; what was assumed of it is a shape of its own.
    shape = 2 * times.shape + ~times.seen
    lines = np.flatnonzero(mine)
    lines = lines[np.argsort(shape[lines], kind="stable")]
    shapes = np.split(lines, np.flatnonzero(np.diff(shape[lines])) + 1)
    weight = times.weight / times.weight[mine].mean()
    regret = np.minimum(np.log(times.ratio) / 0.05, 3)**2
    for drawn, part in batches(np.random.default_rng(0), len(shapes), epochs, batch):
        rows = np.concatenate([shapes[i] for i in drawn])
        counts = [len(shapes[i]) for i in drawn]
        of, first = np.repeat(np.arange(len(drawn)), counts), np.cumsum([0] + counts[:-1])
        total = lambda values: np.bincount(of, values, len(drawn))[of]
        found, guess = {}, np.zeros(len(rows))
        for i in np.unique(which[rows]):
            own = which[rows] == i
            found[i] = own, networks[i].layers(inputs[rows[own]])
            guess[own] = found[i][1][-1][:, 0] * networks[i].scale
        off, w = guess - times.error[rows], weight[rows]
        slope = w * (off - total(w * off) / total(w)) + kept * w * off
        speed = -(np.log(times.model[rows]) + guess) / blur
        chance = np.exp(speed - np.maximum.reduceat(speed, first)[of])
        chance = chance / total(chance)
        slope -= cost * 0.05**2 / blur * chance * (regret[rows] - total(chance * regret[rows]))
        for i, (own, layers) in found.items():
            descents[i].step(layers, slope[own] / networks[i].scale / len(rows), rate * part)
    return {plan: network.rounded() for plan, network in zip(plans, networks)}


def layer_sizes(features):
    sizes = (features, *HIDDEN, 1)
    return zip(sizes, sizes[1:])


def fit(job):
    """Networks of `plan`, or of all where they learn together."""
    times, plan, fold, on = job
    mine = times.weight > 0
    if fold is not None:
        mine &= times.shape % FOLDS != fold
    if plan is None:
        return learn_together(times, mine)
    mine &= times.plan == plan
    data = times.features[mine], times.error[mine], times.weight[mine]
    return {plan: (Network.on(*data, plan, times.key) if on else Network.new(*data)).rounded()}


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
        f"// Of {network.shapes}{len(np.unique(times.shape[times.plan == plan]))} shapes.",
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
    parser.add_argument("--on", metavar="PLAN,...", help="only these, and from their weights on")
    parser.add_argument("--together", action="store_true",
                        help="all, from their weights on, by the choice that they make")
    parser.add_argument("--no-write", action="store_true", help="only judge")
    parser.add_argument("--no-judge", action="store_true", help="only write")
    options = parser.parse_args()
    times = Times(options.sweeps)
    plans = list(dict.fromkeys(PLANS.values()))
    learning = options.on.split(",") if options.on else plans
    if not set(learning) <= set(plans):
        parser.error(f"--on: expected some of {','.join(plans)}, got '{options.on}'")
    if options.on and options.together:
        parser.error("--on and --together: one of them")
    on = bool(options.on) or options.together
    if options.together:
        learning = [None]
    print("by the model: %d of %d shapes missed, the worst %.3f" %
          missed(times, np.zeros(len(times.us))))
    with multiprocessing.Pool() as pool:
        if not options.no_judge:
            jobs = [(times, plan, fold, on) for plan in learning for fold in range(FOLDS)]
            errors = np.zeros(len(times.us))
            for plan in plans if on else []:
                mine = times.plan == plan
                errors[mine] = Network.read(plan, times.key).errors(times.features[mine])
            if on:
                print("with the weights as they are: %d of %d, the worst %.3f" %
                      missed(times, errors))
            for (_, _, fold, _), networks in zip(jobs, pool.imap(fit, jobs)):
                for plan, network in networks.items():
                    unseen = (times.plan == plan) & (times.shape % FOLDS == fold)
                    errors[unseen] = network.errors(times.features[unseen])
            print("with what was learnt, unseen: %d of %d, the worst %.3f" % missed(times, errors))
            for plan in plans:
                near = (times.plan == plan) & (times.ratio < 1.35) & times.seen
                print("  %-9s error %.4f, of the model %.4f" %
                      (plan, (times.error - errors)[near].std(), times.error[near].std()))
        if not options.no_write:
            for networks in pool.imap(fit, [(times, plan, None, on) for plan in learning]):
                for plan, network in networks.items():
                    write(plan, network, times)


if __name__ == "__main__":
    main()
