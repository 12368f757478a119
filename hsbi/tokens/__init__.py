"""Tokens: the sequence that a program's variables make, its layout and its values; no learning."""

from hsbi.tokens.layout import Layout, Variable, make_layout
from hsbi.tokens.pack import Tokens, pack, unpack

__all__ = ["Layout", "Tokens", "Variable", "make_layout", "pack", "unpack"]
