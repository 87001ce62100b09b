"""CSV text of any origin becomes rows with their places, or one sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ground.errors import BadInput
from ground.tables import csv_cells, csv_rows, csv_table


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system(end: str) -> None:
    """Old Macintosh files are read as well; blank lines do not count, but are counted."""
    rows = list(csv_rows(end.join(["a, b", "", '"1,5",2', ",", ""]), "f"))
    assert rows == [("f, line 1", ["a", "b"]), ("f, line 3", ["1,5", "2"])]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the first line must name the columns: a"),
        ("b\n1\n", "the first line must name the columns: a"),
        ("a,a\n1,2\n", "column 'a' stands twice"),
        ("a,b\n1\n", "line 2: has 1 fields, the header has 2"),
        ("a\n", "has no row"),
        ('a\n"1\n', "line 2: is not a line of a CSV file"),
        ("a\n" + "1" * 200_000, "line 2: is not a line of a CSV file"),
    ],
)
def test_what_is_no_table_is_one_sentence(text: str, told: str) -> None:
    """Whatever is wrong names the file, and the line where there is one."""
    with pytest.raises(BadInput, match=told):
        csv_table(text, "f", ("a",))


@given(st.text(st.sampled_from('ab,"\r\n\0 1٣')))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes anything else than rows or bad input, whole or by the line."""
    for read in (lambda: list(csv_rows(text, "f")), lambda: csv_table(text, "f"), lambda: csv_cells(text, "f")):
        try:
            read()
        except BadInput as error:
            assert "f" in str(error)
