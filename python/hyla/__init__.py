"""hyla: inference kernels for hybrid linear attention models.

    hyla.gdn        decode, mtp, prefill, recurrence: Gated DeltaNet over state pools
    hyla.conv       prefill, update: causal conv1d over pools of windows
    hyla.norm       gated_rms
    hyla.attention  run, append, merge: attention over dense, ragged, paged and quantised caches
    hyla.reference  the same, always by the float64 reference

Tensors are torch, numpy, jax or cupy arrays, used in place: nothing is copied.
"""

from . import _core
from ._info import explain, get_num_threads, info, set_num_threads, workspace_bytes
from .errors import DeviceError, Error, InvalidArgument, Unsupported, WorkspaceTooSmall
from . import attention, conv, gdn, norm, reference  # noqa: E402 (after what they need)

__version__: str = _core.version()
if __version__ != _core.package_version:
    raise ImportError(
        f"hyla: the package is {_core.package_version}, but its library is {__version__}"
    )

__all__ = [
    "DeviceError",
    "Error",
    "InvalidArgument",
    "Unsupported",
    "WorkspaceTooSmall",
    "__version__",
    "attention",
    "conv",
    "explain",
    "gdn",
    "get_num_threads",
    "info",
    "norm",
    "reference",
    "set_num_threads",
    "workspace_bytes",
]
