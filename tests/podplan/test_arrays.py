"""Distinct values, without what NumPy imports for them."""

import subprocess
import sys

import numpy as np

from podplan.arrays import distinct


def test_distinct_values_ascend():
    """As ``np.unique`` gives them, also of none."""
    for values in ([3.0, 1.0, 3.0, 2.0], [], [5.0]):
        assert distinct(np.array(values)).tolist() == np.unique(values).tolist()


def test_masked_arrays_are_not_imported():
    """A new interpreter that asks for distinct values does not pay for what nobody uses."""
    asked = "import numpy as np; from podplan.arrays import distinct; distinct(np.ones(2))"
    told = f"import sys; {asked}; print('numpy.ma' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"]
