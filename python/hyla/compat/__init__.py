"""The functions of other libraries by their own names, signatures and return values, over hyla.

    hyla.compat.flashinfer     FlashInfer's Gated DeltaNet functions
    hyla.compat.fla            FLA's gated delta rule, forward only
    hyla.compat.causal_conv1d  causal_conv1d_fn and causal_conv1d_update

They take torch tensors, on the CPU too. docs/python-migration.md has the tables and every
difference.
"""

__all__ = ["causal_conv1d", "fla", "flashinfer"]
