"""Running simulators and counting what they cost."""

from hsbi.simulation.ledger import Ledger

__all__ = ["Ledger"]
