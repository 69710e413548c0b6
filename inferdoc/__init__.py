"""inferdoc measures which inference optimizations pay for your model and your traffic."""

__version__ = "0.1.0"
