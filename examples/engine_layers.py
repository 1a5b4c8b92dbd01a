"""The layers of a hybrid model as an inference engine calls them, step by step, and every output
verified against the whole sequence in one go.

    python examples/engine_layers.py [--device cuda]

What an engine has, and where it goes:

- one allocation for all states, a page a slot: conv window and recurrent state beside each other,
  padding between, so that slots are far apart (`pages`)
- slot 0 belongs to nobody: rows of padding have it, and batches for CUDA graphs are full of them
  (first_slot=1; an engine that pads with -1 leaves first_slot at 0)
- tokens of one packed projection [q|k|v|z] and another [b|a], read as slices; the convolution
  writes over its part (out=x)
- slots that are reused and never cleared: has_initial_state says who starts from zero
- a slot for every token of a verified row, so that rejected drafts need no undoing: the next step
  names the column of the last token that was accepted (read_columns, window_offsets)
- block tables whose entries past the length hold anything, and pages of float8 with a scale a token;
  new tokens by their slots (`slots`), padded with -1
- a prompt that several rows share, read once, and merged with what each of them has seen since
"""

from __future__ import annotations

import argparse
import sys

import torch

import hyla

H, HV, K, V, W, DRAFTS = 2, 4, 64, 64, 4, 3
CHANNELS = 2 * H * K + HV * V
HQ, HK, D, PAGE = 8, 2, 64, 16


class GdnLayer:
    """Gated DeltaNet: short convolution, recurrence, gated norm."""

    def __init__(self, slots: int, device: str) -> None:
        self.weight = torch.randn(CHANNELS, W, device=device).bfloat16()
        self.A_log = torch.rand(HV, device=device).log()
        self.dt_bias = torch.randn(HV, device=device)
        self.norm = (1 + 0.1 * torch.randn(V, device=device)).bfloat16()
        # NaN everywhere: nothing here may be read before it is written.
        window, state = (W - 1 + DRAFTS) * CHANNELS * 2, HV * V * K * 4
        pages = torch.full((slots, window + state + 256), 255, dtype=torch.uint8, device=device)
        columns = pages[:, :window].view(torch.bfloat16).unflatten(1, (W - 1 + DRAFTS, CHANNELS))
        self.windows = columns.transpose(1, 2)  # [slots, C, L] over channels that lie together
        self.states = pages[:, window : window + state].view(torch.float32).view(-1, HV, V, K)

    def split(self, mixed, ba):
        """What the recurrence reads, all of it slices."""
        q, k, v = mixed.split([H * K, H * K, HV * V], dim=1)
        return (
            (q.unflatten(1, (H, K)), k.unflatten(1, (H, K)), v.unflatten(1, (HV, V))),
            {"b": ba[:, :HV], "a": ba[:, HV:], "A_log": self.A_log, "dt_bias": self.dt_bias},
        )

    def prefill(self, qkvz, ba, offsets, slots, has_state):
        """Prompts, or the next pieces of them."""
        mixed = qkvz[:, :CHANNELS]
        hyla.conv.prefill(
            mixed, self.weight, self.windows, cu_seqlens=offsets, slots=slots, first_slot=1,
            has_initial_state=has_state, window_offsets=torch.zeros_like(slots), out=mixed,
        )  # fmt: skip
        tokens, gates = self.split(mixed, ba)
        out = hyla.gdn.prefill(
            *tokens, cu_seqlens=offsets, state=self.states, read_slots=slots, first_slot=1,
            has_initial_state=has_state, l2norm=True, **gates,
        )  # fmt: skip
        z = qkvz[:, CHANNELS:].unflatten(1, (HV, V))
        return hyla.norm.gated_rms(out, z, self.norm)

    def verify(self, qkvz, ba, offsets, table, column, out):
        """One to 1 + DRAFTS tokens a row after the `column`-th token of the row's last step."""
        mixed = qkvz[:, :CHANNELS]
        hyla.conv.update(
            mixed, self.weight, self.windows, cu_seqlens=offsets, slots=table[:, 0],
            window_offsets=column, first_slot=1, out=mixed,
        )  # fmt: skip
        tokens, gates = self.split(mixed, ba)
        hyla.gdn.mtp(
            *tokens, self.states, cu_seqlens=offsets, read_slots=table, read_columns=column,
            step_slots=table, first_slot=1, l2norm=True, z=qkvz[:, CHANNELS:].unflatten(1, (HV, V)),
            norm_weight=self.norm, out=out, **gates,
        )  # fmt: skip

    def whole(self, qkvz, ba, exactly):
        """A sequence from its first to its last token by the float64 reference, in float32 between
        the operations, or rounded there as the layer's own tensors are."""
        kind = torch.float32 if exactly else torch.bfloat16
        qkvz, ba = qkvz.to("cpu", kind), ba.cpu().float()
        tokens, gates = self.split(
            hyla.reference.conv.prefill(
                qkvz[None, :, :CHANNELS], self.weight.to("cpu", kind)
            )[0], ba
        )  # fmt: skip
        gates = {name: x.cpu() for name, x in gates.items()}
        end = torch.tensor([0, len(ba)])
        out = hyla.reference.gdn.prefill(*tokens, cu_seqlens=end, l2norm=True, **gates)
        z = qkvz[:, CHANNELS:].unflatten(1, (HV, V))
        return hyla.reference.norm.gated_rms(out, z, self.norm.to("cpu", kind)).double()


class Sequence:
    """The tokens of a request as its projections, how many are done, and the outputs so far."""

    def __init__(self, tokens: int, first_slot: int, device: str) -> None:
        self.qkvz = torch.randn(tokens, CHANNELS + HV * V, device=device).bfloat16()
        self.ba = torch.randn(tokens, 2 * HV, device=device)
        self.slots = list(range(first_slot, first_slot + 1 + DRAFTS))
        self.done, self.accepted, self.out = 0, 1, []


def offsets_of(counts, device):
    return torch.tensor([0, *counts], device=device).cumsum(0).int()


def prefill(layer, pieces, device):
    """pieces: (sequence, tokens). New sequences and ones that go on, in one call."""
    qkvz = torch.cat([s.qkvz[s.done : s.done + n] for s, n in pieces])
    ba = torch.cat([s.ba[s.done : s.done + n] for s, n in pieces])
    out = layer.prefill(
        qkvz, ba, offsets_of([n for _, n in pieces], device),
        torch.tensor([s.slots[0] for s, _ in pieces], dtype=torch.int32, device=device),
        torch.tensor([s.done > 0 for s, _ in pieces], device=device),
    )  # fmt: skip
    for (sequence, n), rows in zip(pieces, out.split([n for _, n in pieces])):
        sequence.out.append(rows)
        sequence.done, sequence.accepted = sequence.done + n, 1


class Verifier:
    """Verification of drafts with a fixed number of rows, on a GPU as a captured graph."""

    def __init__(self, layer, rows, device):
        def make(dtype, *shape):
            return torch.zeros(shape, dtype=dtype, device=device)

        total = rows * (1 + DRAFTS)
        self.layer, self.rows, self.device = layer, rows, device
        self.qkvz = make(torch.bfloat16, total, CHANNELS + HV * V)
        self.ba = make(torch.float32, total, 2 * HV)
        self.offsets = make(torch.int32, rows + 1)
        self.table = make(torch.int32, rows, 1 + DRAFTS)
        self.column = make(torch.int32, rows)
        self.out = make(torch.bfloat16, total, HV, V)
        self.graph = None
        self.run()  # every row is padding: kernels are loaded, and nothing is touched
        if device != "cpu":
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.run()

    def run(self):
        self.layer.verify(self.qkvz, self.ba, self.offsets, self.table, self.column, self.out)

    def step(self, rows):
        """rows: (sequence, drafts, how many of them turn out right). Wrong drafts are noise."""
        counts = [1 + drafts for _, drafts, _ in rows] + [0] * (self.rows - len(rows))
        self.offsets.copy_(offsets_of(counts, self.device))
        self.table.zero_()
        self.column.zero_()
        self.qkvz.fill_(float("nan"))  # padding is not read
        first = 0
        for i, (s, drafts, right) in enumerate(rows):
            self.table[i] = torch.tensor(s.slots)
            self.column[i] = s.accepted - 1
            for buffer, source in ((self.qkvz, s.qkvz), (self.ba, s.ba)):
                tokens = buffer[first : first + 1 + drafts]
                tokens.copy_(torch.randn_like(tokens))
                tokens[: 1 + right] = source[s.done : s.done + 1 + right]
            first += 1 + drafts
        self.run() if self.graph is None else self.graph.replay()
        first = 0
        for s, drafts, right in rows:
            s.out.append(self.out[first : first + 1 + right].clone())
            s.done, s.accepted = s.done + 1 + right, 1 + right
            first += 1 + drafts


def gdn(device: str) -> bool:
    layer = GdnLayer(slots=20, device=device)
    a, b, c = (Sequence(n, slot, device) for n, slot in ((150, 5), (60, 1), (90, 13)))
    verifier = Verifier(layer, rows=5, device=device)
    prefill(layer, [(a, 70), (b, 33)], device)
    verifier.step([(b, 3, 2)])  # decode rows beside a prefill: two calls of one step
    prefill(layer, [(a, 50), (c, 80)], device)
    for c_right, a_right, b_right in ((0, 3, 1), (2, 0, 0), (1, 1, 3)):
        verifier.step([(c, 2, c_right), (a, 3, a_right), (b, b_right, b_right)])
    verifier.step([(a, 0, 0)])  # nobody drafted: still the same call
    good = True
    for name, s in (("a", a), ("b", b), ("c", c)):
        truth = layer.whole(s.qkvz[: s.done], s.ba[: s.done], True)
        allowed = 4 * (layer.whole(s.qkvz[: s.done], s.ba[: s.done], False) - truth).abs().max()
        error = (torch.cat(s.out).cpu().double() - truth).abs().max()
        good = good and bool(error <= allowed)
        print(f"gdn, sequence {name}: {s.done} tokens, error {error:.1e}, allowed {allowed:.1e}")
    return good


def attention(device: str) -> bool:
    """A prompt, a decode row and a row with drafts in one call, over float8 pages."""
    queries, lengths = [40, 1, 4], [100, 33, 70]
    total, rows, columns = sum(queries), len(queries), 9
    page_bytes = torch.full((24, 2, PAGE, HK, D), 0x7F, dtype=torch.uint8, device=device)  # NaN
    pages = page_bytes.view(torch.float8_e4m3fn)
    scales = torch.full((24, 2, PAGE, HK, 1), float("nan"), device=device)
    cache = hyla.attention.PagedCache(pages[:, 0], pages[:, 1], "nhd", scales[:, 0], scales[:, 1])
    free = torch.randperm(24).tolist()
    table = torch.full((rows, columns), 2**30, dtype=torch.int32)  # garbage past the lengths
    for row, length in enumerate(lengths):
        for column in range(-(-length // PAGE)):
            table[row, column] = free.pop()
    table = table.to(device)
    keys, values = (torch.randn(sum(lengths), HK, D, device=device).bfloat16() for _ in range(2))
    before = [n - q for n, q in zip(lengths, queries)]
    begins = offsets_of(lengths, device).tolist()
    old = [begin + i for begin, n in zip(begins, before) for i in range(n)]
    new = [begin + n + i for begin, n, q in zip(begins, before, queries) for i in range(q)]
    hyla.attention.append(
        cache, keys[old], values[old], page_table=table, cu_seqlens=offsets_of(before, device),
        kv_lengths=torch.tensor(before, dtype=torch.int32, device=device),
    )  # fmt: skip
    # This step's tokens by an engine's slot_mapping, padded as a captured graph has it.
    slots = [
        int(table[row, t // PAGE]) * PAGE + t % PAGE
        for row, (begin, end) in enumerate(zip(before, lengths))
        for t in range(begin, end)
    ]
    padded = new + new[:3]
    slot_mapping = torch.tensor(slots + [-1] * 3, device=device)
    hyla.attention.append(cache, keys[padded], values[padded], slots=slot_mapping)
    q = torch.randn(total, HQ, D, device=device).bfloat16()
    out = hyla.attention.run(
        q, cache, page_table=table, cu_seqlens=offsets_of(queries, device),
        kv_lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
    )  # fmt: skip
    worst, first = 0.0, 0
    for row, (count, length) in enumerate(zip(queries, lengths)):
        used = table[row, : -(-length // PAGE)].long()
        stored = (pages.float() * scales)[used].double()  # [pages, 2, S, Hk, D]
        k, v = (stored[:, i].flatten(0, 1)[:length].repeat_interleave(HQ // HK, 1) for i in (0, 1))
        logits = torch.einsum("qhd,khd->hqk", q[first : first + count].double(), k) * D**-0.5
        ahead = torch.ones(count, length, device=device).triu(length - count + 1).bool()
        weights = logits.masked_fill(ahead, float("-inf")).softmax(-1)
        want = torch.einsum("hqk,khd->qhd", weights, v)
        worst = max(worst, (out[first : first + count] - want).abs().max().item())
        first += count
    allowed = 4 * 2**-9 * values.abs().max().item()  # bfloat16 weights and outputs
    print(f"attention: {total} queries, error {worst:.1e}, allowed {allowed:.1e}")
    return worst <= allowed


def shared_prefix(device: str) -> bool:
    """Rows that share a prompt read it once, all queries together; then each its own keys."""
    rows, prefix, own = 5, 70, [1, 9, 20, 3, 12]
    q = torch.randn(rows, HQ, D, device=device).bfloat16()
    shared, ends = (
        [torch.randn(n, HK, D, device=device).bfloat16() for _ in range(2)]
        for n in (prefix, sum(own))
    )
    lse = [torch.empty(rows, HQ, device=device) for _ in range(2)]
    of_prefix = hyla.attention.run(
        q, hyla.attention.RaggedCache(*shared, offsets_of([prefix], device)),
        cu_seqlens=offsets_of([rows], device), causal=False, lse=lse[0],
    )  # fmt: skip
    begins = offsets_of(own, device)
    of_own = hyla.attention.run(
        q, hyla.attention.RaggedCache(*ends, begins),
        cu_seqlens=offsets_of([1] * rows, device), lse=lse[1],
    )  # fmt: skip
    out = hyla.attention.merge(of_prefix, lse[0], of_own, lse[1], out=of_own)
    worst = 0.0
    for row, (begin, end) in enumerate(zip(begins.tolist(), begins.tolist()[1:])):
        k, v = (
            torch.cat([s, e[begin:end]]).double().repeat_interleave(HQ // HK, 1)
            for s, e in zip(shared, ends)
        )
        weights = (torch.einsum("hd,khd->hk", q[row].double(), k) * D**-0.5).softmax(-1)
        want = torch.einsum("hk,khd->hd", weights, v)
        worst = max(worst, (out[row] - want).abs().max().item())
    allowed = 4 * 2**-9 * max(x[1].abs().max().item() for x in (shared, ends))
    print(f"shared prefix: {rows} queries, error {worst:.1e}, allowed {allowed:.1e}")
    return worst <= allowed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    torch.manual_seed(3)
    with torch.inference_mode():
        good = [gdn(device), attention(device), shared_prefix(device)]
    print("verified" if all(good) else "WRONG")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
