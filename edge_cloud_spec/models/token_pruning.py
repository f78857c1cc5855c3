"""Which of a picture's tokens a draft model can do without; nothing is trained for it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def diverse_tokens(features: Tensor, count: int) -> NDArray[np.int64]:
    """Indices [count], ascending, of the tokens [m, E] that are least like each other.

    DivPrune (Alvar et al., CVPR 2025, arXiv 2503.02175): the least distance between two tokens is
    made as large as it can be, greedily: whatever is farthest from all that are taken comes next,
    by the cosine. ValueError: there are fewer tokens.
    """
    if not 0 < count <= len(features):
        raise ValueError(f"{count} of {len(features)} tokens cannot be kept")
    if count == len(features):
        return np.arange(count)
    unit = torch.nn.functional.normalize(features.float(), dim=1)
    likeness = (unit @ unit.T).cpu().numpy()  # [m, m]
    taken = [int(likeness.sum(axis=1).argmin())]
    nearest = likeness[taken[0]].copy()  # [m]: to the most like of those that are taken
    while len(taken) < count:
        nearest[taken[-1]] = np.inf
        taken.append(int(nearest.argmin()))
        np.maximum(nearest, likeness[taken[-1]], out=nearest)
    return np.sort(np.asarray(taken))
