"""Distinct values, without what NumPy imports for them, and masses between nodes."""

import subprocess
import sys

import numpy as np
import pytest

from ground.arrays import distinct, on_nodes


def test_distinct_values_ascend():
    """As ``np.unique`` gives them, also of none."""
    for values in ([3.0, 1.0, 3.0, 2.0], [], [5.0]):
        assert distinct(np.array(values)).tolist() == np.unique(values).tolist()


def test_masked_arrays_are_not_imported():
    """A new interpreter that asks for distinct values does not pay for what nobody uses."""
    asked = "import numpy as np; from ground.arrays import distinct; distinct(np.ones(2))"
    told = f"import sys; {asked}; print('numpy.ma' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"]


def test_masses_on_a_grid_keep_their_mean():
    """Each goes to the nodes beside it; beyond the last node, to the last."""
    found = on_nodes(np.array([[0.25, 1.5], [2.0, 9.0]]) / 0.5, np.array([0.25, 0.75]), 5)
    assert found[0] == pytest.approx([0.125, 0.125, 0, 0.75, 0])
    assert found[1] == pytest.approx([0, 0, 0, 0, 1])
