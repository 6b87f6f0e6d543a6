"""The version of hsfl."""

__version__ = "0.1.0"
