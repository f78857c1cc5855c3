"""The form in which the cloud sends P at a rejected place, so that the robot can resample."""

from __future__ import annotations

from ...decoding.random_source import RandomSource
from ...decoding.split import Split, largest, sparse_residual
from ...decoding.token_distribution import TokenDistribution
from ...wire.messages import Residual


def residual_of(
    target: TokenDistribution | None, split: Split | None, position: int, source: RandomSource
) -> Residual | None:
    """P in the form of ``split``: the exact sparse residual, PicoSpec's top K, or dense (DSSD).

    None where nothing was rejected, or the cloud resamples itself.
    """
    if target is None:
        return None
    assert split is not None
    if split.residual == "sparse":
        return sparse_residual(target, split, position, source)
    if split.residual == "top_k":
        ids, probabilities = largest(target, split.top_k)
        return TokenDistribution(probabilities, ids)
    return target
