"""Calls from several threads at once, and the interpreter's lock."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

import hyla

B, H, HV, K, V = 2, 2, 4, 32, 32


def problem(seed, to, rows=B):
    rng = np.random.default_rng(seed)
    q, k = (rng.standard_normal((rows, H, K)).astype(np.float32) for _ in range(2))
    v = rng.standard_normal((rows, HV, V)).astype(np.float32)
    return [to(x) for x in (q, k, v, rng.standard_normal((rows, HV, V, K)).astype(np.float32))]


def test_threads_do_not_disturb_each_other():
    def work(seed):
        for to in (np.array, torch.tensor):
            alone = problem(seed, to)
            want = hyla.gdn.decode(*alone, l2norm=True)
            for _ in range(40):
                mine = problem(seed, to)
                got = hyla.gdn.decode(*mine, l2norm=True)
                assert (got == want).all() and (mine[3] == alone[3]).all()
                try:
                    hyla.gdn.decode(*mine, layout=f"{seed}")
                except hyla.InvalidArgument as error:
                    assert error.got == f"'{seed}'"
                else:
                    raise AssertionError("not refused")
        return seed

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(24))) == list(range(24))


def test_other_threads_run_during_a_call():
    """The lock is released: a counter in Python goes on while C++ computes."""
    tokens = 3000
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((tokens, 1, 64)).astype(np.float32) for _ in range(2))
    v = rng.standard_normal((tokens, 2, 64)).astype(np.float32)
    done, ticks = threading.Event(), []

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        start = time.perf_counter()
        hyla.reference.gdn.prefill(q, k, v, cu_seqlens=np.array([0, tokens]), l2norm=True)
        end = time.perf_counter()
    finally:
        done.set()
        thread.join()
    assert any(start < t < end for t in ticks)


def test_a_pool_changes_no_bit():
    rows = 64  # enough work for several threads
    want = hyla.gdn.decode(*(alone := problem(3, np.array, rows)), l2norm=True)

    def work(_):
        for _ in range(20):
            mine = problem(3, np.array, rows)
            got = hyla.gdn.decode(*mine, l2norm=True)
            assert (got == want).all() and (mine[3] == alone[3]).all()

    before = hyla.get_num_threads()
    try:
        for count in (3, 1, 0, 2):
            # The pool before ends while others may still be in a call on it.
            with ThreadPoolExecutor(4) as pool:
                done = pool.map(work, range(4))
                hyla.set_num_threads(count, pool=True)
                assert hyla.info()["thread_pool"] and hyla.get_num_threads() == count
                work(0)
                list(done)
    finally:
        hyla.set_num_threads(before)
    assert not hyla.info()["thread_pool"]
