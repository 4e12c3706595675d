"""scalemark: how PyTorch training scales, and why."""

__version__ = "0.1.0"
