"""Puts hyla under the models of transformers 5 that have Gated DeltaNet layers or short causal
convolutions: Qwen3-Next, Qwen3.5 (dense and MoE), Qwen4-exp, OLMo hybrid, and the convolutions of
others.

    import hyla.integrations.transformers
    hyla.integrations.transformers.enable()          # until disable()
    with hyla.integrations.transformers.enable():    # or for a while
        model.generate(...)

A modeling module of transformers looks its functions up in itself at every call. enable() replaces
them there, in the modules that are loaded and in those that are loaded later; models need not be
made again. A call that hyla does not take goes to the function that was there before: where a
gradient is recorded, while a graph is exported, for dtypes, head dims, filters or devices that hyla
does not have, and on the CPU for an operation of which hyla has the scalar reference only.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
import threading
from types import ModuleType, TracebackType
from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch import Tensor

from .. import gdn
from .._info import info
from ..compat import causal_conv1d as conv1d
from ..compat._shared import inner_contiguous, operand, uniform_offsets

__all__ = ["disable", "enable", "replaced"]

Function = Callable[..., Any]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class _Settings:
    """What enable() has set; `on` is looked at by every replaced function."""

    def __init__(self) -> None:
        self.on = False
        self.reference = False
        self.fast: dict[str, frozenset[str]] = {}

    def has(self, operation: str, tensor: Tensor) -> bool:
        device = tensor.device.type
        return device in self.fast[operation] or (self.reference and device == "cpu")


_settings = _Settings()


def _find_fast() -> dict[str, frozenset[str]]:
    """By operation, the kinds of device that have more than the reference."""
    facts = info()
    gpu = {"cuda"} if any(d["device"] != "cpu" for d in facts["devices"]) else set()
    return {
        operation: frozenset(gpu | ({"cpu"} if any(x.startswith("cpu") for x in names) else set()))
        for operation, names in facts["operations"].items()
    }


def _can_run(*tensors: Tensor | None) -> bool:
    given = [x for x in tensors if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return False
    return all(x.dtype in _DTYPES and x.device == given[0].device for x in given) and not (
        torch.compiler.is_exporting()
    )


def _takes_heads(q: Tensor, v: Tensor) -> bool:
    return all(8 <= x.shape[-1] <= 256 and x.shape[-1] % 8 == 0 for x in (q, v))


def _gated_delta_rule(one_token: bool) -> Callable[[Function], Function]:
    """Both rules have one signature; they differ in what they are fast at."""

    def over(original: Function) -> Function:
        @functools.wraps(original)
        def rule(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            g: Tensor,
            beta: Tensor,
            *args: Any,
            initial_state: Tensor | None = None,
            output_final_state: bool = False,
            use_qk_l2norm_in_kernel: bool = False,
            cu_seqlens: Tensor | None = None,
            **kwargs: Any,
        ) -> tuple[Tensor, Tensor | None]:
            if (
                not _settings.on
                or args
                or query.dim() != 4
                or not _takes_heads(query, value)
                or not _can_run(query, key, value, g, beta, initial_state)
                or not _settings.has("gdn.mtp", query)
            ):
                return original(
                    query, key, value, g, beta, *args, initial_state=initial_state,
                    output_final_state=output_final_state,
                    use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, cu_seqlens=cu_seqlens,
                    **kwargs,
                )  # fmt: skip
            state = _state(query, value, initial_state, cu_seqlens)
            tokens = inner_contiguous(query), operand(key, query.dtype), operand(value, query.dtype)
            common: dict[str, Any] = {"layout": "kv", "l2norm": use_qk_l2norm_in_kernel}
            if cu_seqlens is None and query.shape[1] == 1:
                out = gdn.decode(*tokens, state, log_alpha=g, beta=beta, **common)
            elif cu_seqlens is None and (one_token or not _settings.has("gdn.prefill", query)):
                out = gdn.mtp(*tokens, state, log_alpha=g, beta=beta, **common)
            else:
                out = _prefill(*tokens, state, g, beta, cu_seqlens, common)
            return out, state if output_final_state else None

        return rule

    return over


def _state(
    query: Tensor, value: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None
) -> Tensor:
    """The state that a call works on: the cache's own, in place, where there is one.

    The layer copies the state it gets back into its cache, onto the tensor it took it from.
    """
    if initial_state is not None:
        return inner_contiguous(initial_state)
    sequences = query.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = (sequences, value.shape[2], query.shape[3], value.shape[3])
    return torch.zeros(shape, dtype=torch.float32, device=query.device)


def _prefill(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor | None,
    common: dict[str, Any],
) -> Tensor:
    if cu_seqlens is None:
        cu_seqlens = uniform_offsets(query.shape[0], query.shape[1], query.device)
    out = gdn.prefill(
        *(x.flatten(0, 1) for x in (query, key, value)), cu_seqlens=cu_seqlens, state=state,
        log_alpha=g.flatten(0, 1), beta=beta.flatten(0, 1), **common,
    )  # fmt: skip
    return out.view(value.shape)


def _takes_filter(weight: Tensor, activation: str | None) -> bool:
    return 2 <= weight.shape[-1] <= 4 and activation in (None, "silu", "swish")


def _conv_fn(original: Function) -> Function:
    @functools.wraps(original)
    def causal_conv1d_fn(
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> Any:
        if (
            not _settings.on
            or not _takes_filter(weight, activation)
            or not _can_run(hidden_states, weight, bias)
            or not _settings.has("conv.prefill", hidden_states)
        ):
            return original(hidden_states, weight, bias, activation=activation, **kwargs)
        return conv1d.causal_conv1d_fn(
            hidden_states, weight, bias, kwargs.get("seq_idx"), activation=activation
        )

    return causal_conv1d_fn


def _conv_update(original: Function) -> Function:
    @functools.wraps(original)
    def causal_conv1d_update(
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> Any:
        if (
            not _settings.on
            or kwargs
            or not _takes_filter(weight, activation)
            or not _can_run(hidden_states, conv_state, weight, bias)
            or not _settings.has("conv.update", hidden_states)
        ):
            return original(hidden_states, conv_state, weight, bias, activation, **kwargs)
        return conv1d.causal_conv1d_update(hidden_states, conv_state, weight, bias, activation)

    return causal_conv1d_update


class _Replacement(NamedTuple):
    parameters: tuple[str, ...]  # what the function must begin with to be the one that is meant
    over: Callable[[Function], Function]


_RULE = ("query", "key", "value", "g", "beta")
_REPLACEMENTS = {
    "torch_chunk_gated_delta_rule": _Replacement(_RULE, _gated_delta_rule(one_token=False)),
    "torch_recurrent_gated_delta_rule": _Replacement(_RULE, _gated_delta_rule(one_token=True)),
    "causal_conv1d_fn": _Replacement(("hidden_states", "weight", "bias", "activation"), _conv_fn),
    "causal_conv1d_update": _Replacement(
        ("hidden_states", "conv_state", "weight", "bias", "activation"), _conv_update
    ),
}


class _Patch(NamedTuple):
    module: ModuleType
    name: str
    original: Function
    replacement: Function


_lock = threading.RLock()
_patches: list[_Patch] = []


def _is_modeling(name: str) -> bool:
    top, _, rest = name.partition(".")
    return ".modeling_" in rest and (
        top == "transformers_modules" or (top == "transformers" and rest.startswith("models."))
    )


def _parameters(function: object) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ()


def _patch(module: ModuleType) -> None:
    with _lock:
        done = {(id(p.module), p.name) for p in _patches}
        for name, replacement in _REPLACEMENTS.items():
            original = vars(module).get(name)
            wanted = replacement.parameters
            if (id(module), name) in done or _parameters(original)[: len(wanted)] != wanted:
                continue
            new = replacement.over(original)  # type: ignore[arg-type]
            setattr(module, name, new)
            _patches.append(_Patch(module, name, original, new))  # type: ignore[arg-type]


class _LaterModules(importlib.abc.MetaPathFinder):
    """Patches a modeling module right after it has been loaded."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if not _is_modeling(fullname):
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                self._hook(spec.loader)
                return spec
        return None

    def _hook(self, loader: Any) -> None:
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: ModuleType) -> None:
            load(module)
            if _settings.on:
                _patch(module)

        loader.exec_module = exec_module


_later = _LaterModules()


class Enabled:
    """What enable() returns; as a context manager it takes hyla away again at the end."""

    def __init__(self, before: bool, reference: bool) -> None:
        self._before = before, reference

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        on, reference = self._before
        if on:
            _settings.reference = reference
        else:
            disable()


def enable(*, reference: bool = False) -> Enabled:
    """Puts hyla under transformers.

    reference: also use hyla on the CPU for operations of which it has the scalar reference only;
        slow, for tests.

    Returns a context manager: `with enable():` restores at its end what was before.
    """
    with _lock:
        before = Enabled(_settings.on, _settings.reference)
        _settings.fast = _find_fast()
        _settings.reference = reference
        _settings.on = True
        if _later not in sys.meta_path:
            sys.meta_path.insert(0, _later)
        for name, module in list(sys.modules.items()):
            if _is_modeling(name):
                _patch(module)
    return before


def disable() -> None:
    """Puts the functions of transformers back. Does nothing where hyla is not enabled."""
    with _lock:
        _settings.on = False
        if _later in sys.meta_path:
            sys.meta_path.remove(_later)
        for patch in _patches:
            # Somebody else may have replaced it since; ours, now off, then only passes calls on.
            if vars(patch.module).get(patch.name) is patch.replacement:
                setattr(patch.module, patch.name, patch.original)
        _patches.clear()


def replaced() -> dict[str, list[str]]:
    """The functions that hyla stands in for now, by module."""
    result: dict[str, list[str]] = {}
    with _lock:
        for patch in _patches:
            result.setdefault(patch.module.__name__, []).append(patch.name)
    return result
