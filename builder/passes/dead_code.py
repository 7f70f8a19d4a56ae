"""dead_code: nodes whose results nothing reads are taken out."""

from __future__ import annotations

from ..network import Network
from .base import Pass


class DeadCode(Pass):
    """Walks from the end, so that a chain of unread nodes goes in one run.

    A KV write is read by its attention, so it goes only when that one does.
    """

    name = "dead_code"

    def run(self, network: Network) -> bool:
        """Remove every node without a reader."""
        dead = False
        for node in reversed(list(network.nodes)):
            if not any(network.users(value) or network.is_output(value) for value in node.outputs):
                network.remove(node)
                dead = True
        return dead
