"""Expert loads from files: every format, and one sentence for what is wrong."""

import io
import json
import pickle
import sys
import types
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from ground.errors import BadInput
from planner.placement.loadfiles import _tensor, read_loads

LOADS = np.array([[5.0, 1.0, 0.0, 2.0], [3.0, 3.0, 8.0, 1.0], [1.0, 2.0, 3.0, 4.0]])


def write_torch(path, data):
    """Write a ``.pt`` file as PyTorch does: a ZIP archive of a pickle and one file per storage."""
    utils, torch = types.ModuleType("torch._utils"), types.ModuleType("torch")
    storages = []

    class LongStorage:
        pass

    def _rebuild_tensor_v2(*_):
        """Stand in for PyTorch's: only its name is written."""

    for function, module in ((_rebuild_tensor_v2, utils), (LongStorage, torch)):
        function.__module__, function.__qualname__ = module.__name__, function.__name__
        setattr(module, function.__name__, function)

    class Storage:
        def __init__(self, array):
            self.array = array

    class Tensor:
        def __init__(self, array):
            self.array = array

        def __reduce__(self):
            strides = tuple(step // self.array.itemsize for step in self.array.strides)
            return _rebuild_tensor_v2, (Storage(self.array), 0, self.array.shape, strides, False, OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            if not isinstance(value, Storage):
                return None
            storages.append(value.array)
            return "storage", LongStorage, str(len(storages) - 1), "cpu", value.array.size

    buffer, before = io.BytesIO(), {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update({"torch": torch, "torch._utils": utils})
    try:
        wrapped = {key: Tensor(value) if isinstance(value, np.ndarray) else value for key, value in data.items()}
        Pickler(buffer, protocol=2).dump(wrapped)
    finally:
        for name, module in before.items():
            sys.modules.pop(name) if module is None else sys.modules.update({name: module})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("dump/data.pkl", buffer.getvalue())
        for key, array in enumerate(storages):
            archive.writestr(f"dump/data/{key}", array.tobytes())


def csv_text(rows, header=None):
    """Rows as CSV."""
    return "".join(",".join(map(str, row)) + "\n" for row in ([header] if header else []) + list(rows))


@pytest.mark.parametrize("header", [None, ["e0", "e1", "e2", "e3"], ["expert 0", "a", "b", "c"]])
def test_csv_needs_no_header(tmp_path, header):
    """A row per layer, a column per expert."""
    path = tmp_path / "loads.csv"
    path.write_text(csv_text(LOADS, header))
    assert (read_loads(path).loads == LOADS).all()


def test_csv_with_keys_is_sliced(tmp_path):
    """Every combination of domain and slice is a time slice; rows may come in any order, total columns do not count."""
    rows = [
        [domain, at, layer, LOADS[layer - 1].sum(), *(LOADS[layer - 1] + 10 * (domain == "b") + at)]
        for at in (0, 1)
        for layer in (3, 1, 2)
        for domain in ("a", "b")
    ]
    path = tmp_path / "loads.csv"
    path.write_text(csv_text(rows, ["domain", "slice", "layer", "tokens", "e0", "e1", "e2", "e3"]))
    read = read_loads(path)
    assert read.loads.shape[2] == 4
    assert (read.loads[:, :, 0] == LOADS).all()
    assert (read.loads[:, :, 3] == LOADS + 11).all()


def test_numpy_files(tmp_path):
    """NPY, NPZ with one array, NPZ with a known name among several."""
    sliced = np.stack([LOADS, LOADS + 1], axis=2)
    np.save(tmp_path / "a.npy", sliced.astype(np.int32))
    np.savez(tmp_path / "b.npz", whatever=LOADS)
    np.savez_compressed(tmp_path / "c.npz", layers=np.arange(3), logical_count=LOADS)
    assert (read_loads(tmp_path / "a.npy").loads == sliced).all()
    assert (read_loads(tmp_path / "b.npz").loads == LOADS).all()
    assert (read_loads(tmp_path / "c.npz").loads == LOADS).all()


@pytest.mark.parametrize("ending", ["pt", "json"])
def test_sglang_dumps(tmp_path, ending):
    """logical_count is steps x model layers x experts: the dense layer is left out, steps become slices."""
    counts = np.stack([np.vstack([np.zeros(4), LOADS]), np.vstack([np.zeros(4), LOADS * 2])]).astype(np.int64)
    path = tmp_path / f"dump.{ending}"
    if ending == "pt":
        write_torch(path, {"rank": 0, "logical_count": counts})
    else:
        path.write_text(json.dumps({"logical_count": counts.tolist()}))
    read = read_loads(path)
    assert read.dense_layers == 1
    assert (read.loads == np.stack([LOADS, LOADS * 2], axis=2)).all()


def test_a_dump_of_one_step_has_no_slices(tmp_path):
    """Its layers without load lead; more numbers than are read are refused before they are copied."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"logical_count": [[0, 0, 0, 0], *LOADS.tolist()]}))
    read = read_loads(path)
    assert (read.loads == LOADS).all() and read.dense_layers == 1
    with pytest.MonkeyPatch.context() as patch, pytest.raises(BadInput, match="has 16 numbers, more than the 15"):
        patch.setattr("planner.placement.loadfiles.MOST_ELEMENTS", 15)
        read_loads(path)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x/other.pkl", b"", "is not a file that PyTorch saved"),
        ("x/data.pkl", pickle.dumps(("code", "<i8", "0", "cpu", 1))[:-1] + b"Q.", "its pickle is broken"),
        ("x/data.pkl", b"Pone\n.", "its pickle is broken"),
    ],
)
def test_a_torch_file_without_storages_is_refused(tmp_path, name, content, told):
    """What is no pickle of PyTorch's, or leads to no numbers."""
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr(name, content)
    with pytest.raises(BadInput, match=told):
        read_loads(tmp_path / "a.pt")


def test_a_tensor_is_no_larger_than_its_storage():
    """A view that repeats two numbers a million times is none of counts."""
    with pytest.raises(pickle.UnpicklingError):
        _tensor(np.zeros(2), 0, (1000, 1000), (0, 0))


def test_a_torch_file_cannot_run_code(tmp_path):
    """A pickle that names any other function is refused before the function is looked up."""

    class Evil:
        def __reduce__(self):
            return exec, ("raise SystemExit",)

    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"logical_count": Evil()}))
    with pytest.raises(BadInput, match=r"evil.pt: holds builtins.exec, which is not plain data"):
        read_loads(tmp_path / "evil.pt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[" * 100_000, "not an acceptable JSON"),
        ("a.npy", "nonsense", "is not a NumPy file of plain numbers, or not a whole one; write it with numpy.save"),
        ("a.npz", "nonsense", "is not a NumPy file"),
        ("a.pt", "nonsense", "is not a file that PyTorch saved"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path, name, content, message):
    """The file is named; wrong texts stand in tests/cli/refusals.txt."""
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(BadInput) as caught:
        read_loads(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_objects_and_unnamed_arrays_are_refused(tmp_path):
    """Pickled arrays are never loaded; of several arrays one must be named."""
    np.save(tmp_path / "o.npy", np.array([{"a": 1}]), allow_pickle=True)
    np.savez(tmp_path / "two.npz", a=LOADS, b=LOADS)
    for name, message in (("o.npy", "not a NumPy file of plain numbers"), ("two.npz", "has the arrays a, b")):
        with pytest.raises(BadInput, match=message):
            read_loads(tmp_path / name)
    with pytest.raises(BadInput, match="no such file"):
        read_loads(tmp_path / "absent.npy")
