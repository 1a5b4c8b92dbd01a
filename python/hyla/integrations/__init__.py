"""hyla under other people's models: hyla.integrations.transformers."""

__all__ = ["transformers"]
