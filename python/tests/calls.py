"""One ordinary torch call of every operation, on any device, for tests that go over all of them."""

from __future__ import annotations

from typing import Any, Callable

import torch

import hyla


class TorchCall:
    """Arguments of an operation; `run` is fit for torch.compile and torch.export."""

    def __init__(self, name: str, run: Callable[..., Any], tensors: dict[str, torch.Tensor]) -> None:
        self.name, self.run, self.tensors = name, run, tensors

    def copy(self, device: str = "cpu") -> TorchCall:
        return TorchCall(
            self.name, self.run, {n: t.to(device, copy=True) for n, t in self.tensors.items()}
        )

    def __call__(self, function: Callable[..., Any] | None = None) -> Any:
        return (function or self.run)(**self.tensors)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def torch_calls(dtype: torch.dtype = torch.float32, wide: int = 64) -> dict[str, TorchCall]:
    generator = torch.Generator().manual_seed(11)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    B, T, H, HV, K = 3, 2, 2, 4, wide
    total, cu = 7, ints(0, 2, 2, 7)
    gates = {"a": random(B, HV), "b": random(B, HV)}
    row = {"A_log": random(HV).float(), "dt_bias": random(HV).float()}
    pool = random(4, HV, K, K).float()

    def decode(q, k, v, state, a, b, A_log, dt_bias, slots):
        return hyla.gdn.decode(
            q, k, v, state, a=a, b=b, A_log=A_log, dt_bias=dt_bias, read_slots=slots, l2norm=True
        )

    def mtp(q, k, v, state, alpha, slots, states_out):
        return hyla.gdn.mtp(
            q, k, v, state, alpha=alpha, read_slots=slots, states_out=states_out, l2norm=True
        )

    def prefill(q, k, v, state, log_alpha, cu_seqlens):
        return hyla.gdn.prefill(
            q, k, v, state=state, log_alpha=log_alpha, cu_seqlens=cu_seqlens, l2norm=True
        )

    def recurrence(qkv, state, alpha, beta, cu_seqlens):
        return hyla.gdn.recurrence(
            qkv, state=state, heads=(H, HV), dims=(K, K), alpha=alpha, beta=beta,
            cu_seqlens=cu_seqlens,
        )  # fmt: skip

    def conv_prefill(x, weight, state, cu_seqlens, slots):
        return hyla.conv.prefill(x, weight, state, cu_seqlens=cu_seqlens, slots=slots)

    def conv_update(x, weight, state, bias, slots):
        return hyla.conv.update(x, weight, state, bias=bias, slots=slots)

    def gated_rms(x, z, weight):
        return hyla.norm.gated_rms(x, z, weight)

    def run(q, pages, cu_seqlens, kv_lengths, page_table, lse):
        return hyla.attention.run(
            q, hyla.attention.PagedCache.fused(pages), cu_seqlens=cu_seqlens, kv_lengths=kv_lengths,
            page_table=page_table, lse=lse,
        )  # fmt: skip

    def append(pages, k, v, cu_seqlens, kv_lengths, page_table):
        hyla.attention.append(
            hyla.attention.PagedCache.fused(pages), k, v, cu_seqlens=cu_seqlens,
            kv_lengths=kv_lengths, page_table=page_table,
        )  # fmt: skip

    def merge(a, a_lse, b, b_lse, lse):
        return hyla.attention.merge(a, a_lse, b, b_lse, lse=lse)

    paged = {
        "cu_seqlens": cu,
        "kv_lengths": ints(5, 0, 9),
        "page_table": torch.tensor([[3, 1, -1], [-1, -1, -1], [0, 2, 4]], dtype=torch.int32),
    }
    calls = {
        "gdn_decode": (decode, {
            "q": random(B, H, K), "k": random(B, H, K), "v": random(B, HV, K),
            "state": pool.clone(), **gates, **row, "slots": ints(2, -1, 0)}),
        "gdn_mtp": (mtp, {
            "q": random(B, T, H, K), "k": random(B, T, H, K), "v": random(B, T, HV, K),
            "state": pool.clone(), "alpha": random(B, T, HV).sigmoid(), "slots": ints(0, 3, 2),
            "states_out": torch.zeros(B, T, HV, K, K)}),
        "gdn_prefill": (prefill, {
            "q": random(total, H, K), "k": random(total, H, K), "v": random(total, HV, K),
            "state": pool.clone(), "log_alpha": -random(total, HV).abs(), "cu_seqlens": cu}),
        "gdn_recurrence": (recurrence, {
            "qkv": random(total, 2 * H * K + HV * K), "state": pool.clone(),
            "alpha": random(total, HV).sigmoid(), "beta": random(total, HV).sigmoid(),
            "cu_seqlens": cu}),
        "conv_prefill": (conv_prefill, {
            "x": random(total, 24), "weight": random(24, 4), "state": random(4, 24, 3),
            "cu_seqlens": cu, "slots": ints(1, 0, 3)}),
        "conv_update": (conv_update, {
            "x": random(B, 24), "weight": random(24, 4), "state": random(4, 24, 3),
            "bias": random(24), "slots": ints(1, -1, 3)}),
        "norm_gated_rms": (gated_rms, {
            "x": random(5, HV, K), "z": random(5, HV, K), "weight": random(K)}),
        "attention_run": (run, {
            "q": random(total, HV, K), "pages": random(5, 2, 4, H, K), **paged,
            "lse": torch.zeros(total, HV)}),
        "attention_append": (append, {
            "pages": random(5, 2, 4, H, K), "k": random(total, H, K), "v": random(total, H, K),
            **paged}),
        "attention_merge": (merge, {
            "a": random(total, HV, K), "a_lse": random(total, HV).float(),
            "b": random(total, HV, K), "b_lse": random(total, HV).float(),
            "lse": torch.zeros(total, HV)}),
    }  # fmt: skip
    return {name: TorchCall(name, *call) for name, call in calls.items()}
