"""What a pass is: a name, the passes it needs before it, and one rewriting of the network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from ..network import Network


class Pass(ABC):
    """One rewriting. It keeps the meaning of the network, up to the rounding it is there for."""

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def run(self, network: Network) -> bool:
        """Rewrite in place; return False if and only if nothing has changed."""
