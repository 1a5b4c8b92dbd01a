"""The operations once more, in torch, in the arithmetic that is asked for.

    with naive(torch.float64):
        call()          # whatever it calls of hyla.gdn, conv, norm and attention comes here

In float64 the results are exact, in float32 they show what that precision costs; judge.py compares
the two with what a kernel computed. `operands` is a dtype to which operands of matrix products are
rounded first where kernels may do so: in prefill and attention. Arguments that the tests on a GPU do
not use are refused, never ignored.
"""

import contextlib
import inspect

import pytest
import torch

import hyla


class Naive:
    def __init__(self, real, operands):
        self.real, self.operands = real, operands

    def number(self, x):
        return None if x is None else x.to(self.real)

    def operand(self, x):
        return x if self.operands is None else x.to(self.operands).to(self.real)

    # Gated DeltaNet

    def gdn_decode(self, p):
        tokens = lambda x, rank: x.unsqueeze(1) if x is not None and x.dim() < rank else x  # noqa: E731
        p.q, p.k, p.v, given = (tokens(x, 4) for x in (p.q, p.k, p.v, p.out))
        for name in ("alpha", "log_alpha", "a", "beta", "b"):
            setattr(p, name, tokens(getattr(p, name), 3))
        shape, p.out = p.out_shape, given
        p.states_out = p.step_slots = p.commit_lengths = None
        p.update_state = True
        return self.gdn_mtp(p).view(shape)

    def gdn_mtp(self, p):
        p.refuse("cu_seqlens", "starts", "lengths", "commit_lengths")
        out = torch.zeros_like(p.v) if p.out is None else p.out
        rows = [tuple(x[n] for x in (p.q, p.k, p.v)) for n in range(len(p.q))]
        gates = self.gates(p, p.v.shape[:3])
        for n, row in enumerate(rows):

            def keep(t, state, n=n, last=len(row[0])):
                if p.states_out is not None and t > 0:
                    p.states_out[n, t - 1] = state
                if p.step_slots is not None and t > 0 and p.step_slots[n, t - 1] >= 0:
                    p.state[p.step_slots[n, t - 1]] = state
                writes = p.update_state if p.step_slots is None else p.write_slots is not None
                if t == last and writes and p.write_slot(n) >= 0:
                    p.state[p.write_slot(n)] = state

            self.gdn_row(p, n, row, tuple(x[n] for x in gates), out[n], keep, self.number)
        return out

    def gdn_prefill(self, p):
        p.refuse("starts", "lengths", "has_initial_state", "checkpoints", "checkpoint_offsets")
        heads = max(p.q.shape[1], p.v.shape[1])
        out = torch.zeros((len(p.q), heads, p.v.shape[2])) if p.out is None else p.out
        gates = self.gates(p, (len(p.q), heads))
        final = p.state if p.state_out is None else p.state_out
        for n, (begin, end) in enumerate(p.spans()):

            def keep(t, state, n=n, last=end - begin):
                if t == last and p.update_state and final is not None and p.write_slot(n) >= 0:
                    final[p.write_slot(n)] = state

            span = slice(begin, end)
            row = tuple(x[span] for x in (p.q, p.k, p.v))
            self.gdn_row(p, n, row, tuple(x[span] for x in gates), out[span], keep, self.operand)
        return out

    def gdn_recurrence(self, p):
        (H, HV), (K, V) = p.heads, p.dims
        q, k, v = p.qkv.split([H * K, H * K, HV * V], 1)
        p.q, p.k, p.v = q.unflatten(1, (H, K)), k.unflatten(1, (H, K)), v.unflatten(1, (HV, V))
        p.state_out, p.update_state, given = None, True, p.out
        p.out = None if given is None else given.unflatten(1, (HV, V))
        return Naive(self.real, None).gdn_prefill(p).flatten(1)  # no matrix products

    def gates(self, p, shape):
        number = self.number
        if p.alpha is not None:
            alpha = number(p.alpha)
        elif p.log_alpha is not None:
            alpha = number(p.log_alpha).exp()
        elif p.a is not None:
            rate, x = number(p.A_log).exp(), number(p.a) + number(p.dt_bias)
            alpha = (-rate * torch.nn.functional.softplus(x, threshold=40)).exp()
        else:
            alpha = torch.ones(shape, dtype=self.real)
        if p.beta is not None:
            return alpha, number(p.beta)
        return alpha, torch.ones_like(alpha) if p.b is None else number(p.b).sigmoid()

    def gdn_row(self, p, n, row, gates, out, keep, operand):
        """keep(t, state) gets the state after t tokens as the pool has it."""
        slot = p.read_slot(n)
        if slot < 0:
            return
        heads = out.shape[1]
        q, k, v = (self.number(x).repeat_interleave(heads // x.shape[1], 1) for x in row)
        if p.l2norm:
            q, k = (
                operand(x * (x.square().sum(-1, keepdim=True) + p.l2norm_eps).rsqrt())
                for x in (q, k)
            )
        scale = q.shape[-1] ** -0.5 if p.scale is None else p.scale
        turn = (lambda x: x.mT) if p.layout == "vk" else (lambda x: x)  # S is [heads, K, V]
        if p.state is None:
            S = torch.zeros((heads, q.shape[-1], v.shape[-1]), dtype=self.real)
        else:
            S = self.number(turn(p.state[slot])).clone()
        keep(0, turn(S))
        for t in range(len(q)):
            S = S * gates[0][t, :, None, None]
            seen = torch.einsum("hk,hkv->hv", k[t], operand(S))
            delta = operand(gates[1][t, :, None] * (v[t] - seen))
            S = S + k[t, :, :, None] * delta[:, None]
            out[t] = scale * torch.einsum("hk,hkv->hv", q[t], operand(S))
            keep(t + 1, turn(S))

    # Convolution and norm

    def conv_prefill(self, p):
        p.refuse("starts", "lengths", "has_initial_state", "checkpoint_offsets")
        return self.conv(p)

    def conv_update(self, p):
        p.refuse("cu_seqlens", "starts", "lengths", "commit_lengths")
        if p.x.dim() == 2:
            p.x, p.out = p.x.unsqueeze(1), None if p.out is None else p.out.unsqueeze(1)
            return self.conv(p).squeeze(1)
        return self.conv(p)

    def conv(self, p):
        p.refuse("window_offsets", "write_slots", "read_columns")
        out = torch.zeros_like(p.x) if p.out is None else p.out
        p.read_slots = p.read_slots if p.slots is None else p.slots
        spans = [slice(*s) for s in p.spans()] if p.x.dim() == 2 else range(len(p.x))
        width = p.weight.shape[1]
        weight, bias = self.number(p.weight), self.number(p.bias)
        for n, span in enumerate(spans):
            x, slot = p.x[span], p.read_slot(n)
            if slot < 0:
                continue
            old = torch.zeros((x.shape[1], width - 1)) if p.state is None else p.state[slot]
            inputs = torch.cat([old.to(x.dtype), x.T], 1)  # [C, L + tokens]
            window = self.number(inputs[:, old.shape[1] - (width - 1) :])
            y = sum(weight[:, j, None] * window[:, j : j + len(x)] for j in range(width))
            y = y if bias is None else y + bias[:, None]
            out[span] = (torch.nn.functional.silu(y) if p.activation == "silu" else y).T
            if p.state is not None:
                p.state[slot] = inputs[:, len(x) :]
        return out

    def norm_gated_rms(self, p):
        x, z = self.number(p.x), self.number(p.z)
        z = z * z.sigmoid() if p.gate == "silu" else z.sigmoid()
        y = x * (x.square().mean(-1, keepdim=True) + p.eps).rsqrt() * self.number(p.weight) * z
        return p.out.copy_(y) if p.out is not None else y.to(p.x.dtype)

    # Attention over pages

    def attention_run(self, p):
        p.refuse("starts", "lengths", "window", "chunk", "sinks", "softcap")
        out = torch.zeros_like(p.q) if p.out is None else p.out
        scale = p.q.shape[-1] ** -0.5 if p.scale is None else p.scale
        for n, (begin, end) in enumerate(p.spans()):
            group = p.q.shape[1] // p.cache.k.shape[2]
            k, v = (
                self.operand(self.number(x)).repeat_interleave(group, 1) for x in p.stored(n)
            )  # [keys, Hq, D]
            for i in range(begin, end):
                seen = slice(0, len(k) - (end - 1 - i))
                logits = scale * torch.einsum("hd,khd->hk", self.number(p.q[i]), k[seen])
                top = logits.max(-1, keepdim=True).values
                weights = (logits - top).exp()
                total = weights.sum(-1, keepdim=True)
                out[i] = torch.einsum("hk,khd->hd", self.operand(weights), v[seen]) / total
                if p.lse is not None:
                    p.lse[i] = (top + total.log())[:, 0]
        return out

    def attention_append(self, p):
        p.refuse("starts", "lengths", "slots", "positions", "cos", "sin")
        for n, (begin, end) in enumerate(p.spans()):
            for i in range(begin, end):
                t = int(p.kv_lengths[n]) - (end - i)
                page, place = int(p.page_table[n, t // p.page]), t % p.page
                p.cache.k[page, place], p.cache.v[page, place] = p.k[i], p.v[i]

    def attention_merge(self, p):
        both = torch.stack([self.number(p.a_lse), self.number(p.b_lse)])
        total = both.logsumexp(0)
        share = (both - total).exp()[..., None]
        y = share[0] * self.number(p.a) + share[1] * self.number(p.b)
        if p.lse is not None:
            p.lse.copy_(total)
        return p.out.copy_(y) if p.out is not None else y.to(p.a.dtype)


class Arguments:
    """Those of a call by name, and what rows and sequences follow from them."""

    def __init__(self, signature, args, kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        vars(self).update(bound.arguments)
        vars(self).setdefault("first_slot", 0)
        if "v" in vars(self) and self.v is not None:
            self.out_shape = self.v.shape
        cache = vars(self).get("cache")
        assert cache is None or (cache.kind, cache.layout) == ("paged", "nhd")
        self.page = None if cache is None else cache.k.shape[1]
        self.refuse("read_columns", "norm_weight", "decay_cutoff_log2", "stream", "impl")
        assert self.first_slot == 0

    def refuse(self, *names):
        assert all(vars(self).get(name) is None for name in names), names

    def spans(self):
        offsets = self.cu_seqlens.tolist()
        return list(zip(offsets, offsets[1:]))

    def read_slot(self, n):
        return n if self.read_slots is None else int(self.read_slots[n])

    def write_slot(self, n):
        return self.read_slot(n) if self.write_slots is None else int(self.write_slots[n])

    def stored(self, n):
        """Keys and values of a row, [keys, Hk, D]."""
        at = [(int(self.page_table[n, t // self.page]), t % self.page)
              for t in range(int(self.kv_lengths[n]))]  # fmt: skip
        empty = [x.new_zeros((0, *x.shape[2:])) for x in (self.cache.k, self.cache.v)]
        if not at:
            return empty
        return [torch.stack([x[i, j] for i, j in at]) for x in (self.cache.k, self.cache.v)]


MODULES = {"gdn": hyla.gdn, "conv": hyla.conv, "norm": hyla.norm, "attention": hyla.attention}
NAMES = [
    (module, name)
    for module, names in {
        "gdn": ["decode", "mtp", "prefill", "recurrence"],
        "conv": ["prefill", "update"],
        "norm": ["gated_rms"],
        "attention": ["run", "append", "merge"],
    }.items()
    for name in names
]


@contextlib.contextmanager
def naive(real, operands=None):
    """The operations of hyla are these until the end of the block."""
    arithmetic = Naive(real, operands)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for matrices so small, others only wait for each other
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as after:
        after.callback(torch.set_num_threads, threads)
        for module, name in NAMES:
            signature = inspect.signature(getattr(MODULES[module], name))
            compute = getattr(arithmetic, f"{module}_{name}")

            def call(*args, _signature=signature, _compute=compute, **kwargs):
                with torch.no_grad():
                    return _compute(Arguments(_signature, args, kwargs))

            patch.setattr(MODULES[module], name, call)
        yield
