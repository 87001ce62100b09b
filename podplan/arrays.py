"""What NumPy does dearly at first use."""

import numpy as np
from numpy.typing import NDArray


def distinct(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distinct values, ascending.

    ``np.unique`` without further results imports masked arrays when it is first called, which takes 30 ms.

    >>> distinct(np.array([2.0, 1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    return np.unique(values, return_index=True)[0]
