"""Tells whether an image is like the images you trust, how sure that is, and where it differs."""

__version__ = "0.1.0"
