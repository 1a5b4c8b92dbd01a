"""The decode step of decode.cpp from Python: 4 decays to 2 and moves half of the way to 10.

Any framework will do: these are numpy arrays, and torch tensors, on a GPU too, are called the same.
"""

import numpy as np

import hyla

q = np.zeros((1, 1, 8), np.float32)  # [B, H, K]
q[..., 0] = 1
k, v = q.copy(), np.full((1, 1, 8), 10, np.float32)  # [B, H, K], [B, HV, V]
state = np.zeros((1, 1, 8, 8), np.float32)  # [slots, HV, V, K], updated in place
state[..., 0] = 4
half = np.full((1, 1), 0.5, np.float32)  # [B, HV]

out = hyla.gdn.decode(q, k, v, state, alpha=half, beta=half, scale=1.0)

print(f"out = {out[0, 0, 0]:g}, state = {state[0, 0, 0, 0]:g}")
assert (out == 6).all() and (state[..., 0] == 6).all()
