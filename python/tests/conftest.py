"""Settings of the tests: bounded and reproducible examples, GPU tests only where a GPU is."""

import os

# Before torch is imported. Some virtual machines announce AMX without the CPUID leaf of its tiles'
# shape, from which oneDNN makes its kernels: torch's bfloat16 layers then end in an illegal
# instruction, with and without hyla.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "hyla",
    max_examples=int(os.environ.get("HYLA_TEST_EXAMPLES", "150")),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("hyla")


def has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def pytest_collection_modifyitems(items):
    if has_gpu():
        return
    skip = pytest.mark.skip(reason="no GPU")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)
