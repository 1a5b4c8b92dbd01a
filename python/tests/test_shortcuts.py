"""Calls that skip the body of the Python function do what the body would do."""

import functools
import inspect
import types

import pytest
import torch

import hyla
from calls import torch_calls
from hyla import _core, _info

NAMES = sorted(torch_calls())
# The interpreter takes the short way from 3.12 on, partial objects on every version.
SHORT = {name: functools.partial(function) for name, function in _info._FUNCTIONS.items()}


def body_of(function):
    """The same code in a function that nobody has shortened."""
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__,
                              function.__defaults__, function.__closure__)  # fmt: skip
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def both_ways(operation, monkeypatch):
    """Runs the call of an operation by its short way and by its body."""
    module, name = operation.split("_", 1)
    key, results = f"{module}.{name}", []
    for function in (SHORT[key], body_of(_info._FUNCTIONS[key])):
        monkeypatch.setattr(getattr(hyla, module), name, function)
        call = torch_calls()[operation]
        results.append((call(), call.tensors))
    return results


@pytest.mark.parametrize("operation", NAMES)
def test_results(operation, monkeypatch):
    (short, short_tensors), (body, body_tensors) = both_ways(operation, monkeypatch)
    assert (short is None and body is None) or torch.equal(short, body)
    for name, tensor in short_tensors.items():
        assert torch.equal(tensor, body_tensors[name]), name


@pytest.mark.parametrize("operation", [n for n in NAMES if n != "gdn_recurrence"])
def test_the_body_is_skipped(operation, monkeypatch):
    """What the body would call is never reached."""
    key = operation.replace("_", ".", 1)
    function = _info._FUNCTIONS[key]

    def fail():
        raise AssertionError("the body ran")

    monkeypatch.setitem(function.__globals__, "compiling", fail)
    module, name = key.split(".")
    monkeypatch.setattr(getattr(hyla, module), name, SHORT[key])
    torch_calls()[operation]()
    monkeypatch.setattr(getattr(hyla, module), name, body_of(function))
    with pytest.raises(AssertionError, match="the body ran"):
        torch_calls()[operation]()


def outcome(function, args, kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001
        return type(error), str(error)
    return None


class Cache(hyla.attention.DenseCache):
    """A kind that the short way does not know, but the body does."""


@pytest.mark.parametrize("key", sorted(SHORT))
def test_unusual_calls_get_the_same_words(key):
    function = _info._FUNCTIONS[key]
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    x = torch.zeros(2, 2, 8)
    first = parameters[0].name
    cases = [
        ((), {}),
        ((x,) * len(positional), {}),
        ((x,) * (len(positional) + 1), {}),
        ((x,), {first: x}),
        ((x,), {"colour": 1}),
        ((), {p.name: x for p in positional}),
        ((), {"".join(["im", "pl"]): "nothing", **{p.name: x for p in positional}}),
        ((x, Cache(x, x)), {}),
        ((x, hyla.attention.DenseCache(x, x)), {}),
        ((Cache(x, x), x, x), {}),
        ((hyla.attention.RaggedCache(x, x, x), x, x), {}),
    ]
    for args, kwargs in cases:
        assert outcome(SHORT[key], args, kwargs) == outcome(body_of(function), args, kwargs)


def test_a_cache_without_its_parts():
    """An attribute that was never set: an error of Python's own, and nothing is kept."""
    cache = hyla.attention.DenseCache.__new__(hyla.attention.DenseCache)
    q = torch.zeros(1, 1, 8)
    for function in (SHORT["attention.run"], body_of(hyla.attention.run)):
        with pytest.raises(AttributeError):
            function(q, cache)


def test_what_cannot_be_shortened():
    def other(q):
        return q

    for function, name in ((other, "gdn_decode"), (other, "nothing"), (3, "gdn_decode")):
        with pytest.raises((ValueError, TypeError)):
            _core.shorten(function, name, ())
    with pytest.raises(ValueError):
        _core.shorten(other, "attention_run", (Cache,))
    assert other(2) == 2
