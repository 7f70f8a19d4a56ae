"""SentencePiece scores -> the ordered merges a BPE tokenizer works with."""

from __future__ import annotations

from collections.abc import Mapping


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, best score first.

    SentencePiece joins the neighbours whose union scores highest; as a merge's rank is its union's
    rank, both make the same choices (ties apart, which trained vocabularies do not have).
    """
    ranked: list[tuple[float, int, str, str]] = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                ranked.append((-score, len(left), left, right))
    ranked.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in ranked]
