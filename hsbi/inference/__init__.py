"""Inference: surrogates, posteriors and the classes that users call."""
