"""What a screen shows, as a page of HTML or as Markdown: the same views write all three."""

from io import StringIO
from xml.etree.ElementTree import Element, SubElement, tostring

from cli.output import Screen, TextTable
from cli.plots import drawn

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #1a202c }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
table { border-collapse: collapse; margin: .8rem 0; display: block; overflow-x: auto }
caption { text-align: left; font-weight: 600 }
td { min-width: 3rem } td:not(.number):nth-last-child(-n+2) { min-width: 7rem }
th, td { padding: .2rem .5rem; text-align: left; vertical-align: top; border-bottom: 1px solid #e2e8f0 }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; background: #f7fafc; padding: 1rem }
dt { font-weight: 600 } dd { margin: 0 }
figure { margin: 1.2rem 0 } figcaption { color: #4a5568; max-width: 45rem }
code { background: #edf2f7; padding: .1rem .3rem }
svg { max-width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif }
.grid { stroke: #e2e8f0 } line.limit { stroke: #b22222; stroke-dasharray: 5 4 } text.limit { fill: #b22222 }
.idle { fill: #edf2f7 }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # what a browser may load: nothing


class Page(Screen):
    """An HTML page that needs nothing else; every text is escaped as it is written."""

    def __init__(self, title: str) -> None:
        """Begin a page."""
        super().__init__(StringIO(), 1)
        self._root = Element("html", lang="en")
        head = SubElement(self._root, "head")
        drawn(head, "meta", charset="utf-8")
        drawn(head, "meta", http_equiv="Content-Security-Policy", content=POLICY)
        drawn(head, "meta", name="viewport", content="width=device-width")
        drawn(head, "title", title)
        drawn(head, "style", STYLE)
        self.body = SubElement(self._root, "body")
        drawn(self.body, "h1", title)

    def lines(self, *lines: str) -> None:
        """Write lines as paragraphs."""
        self.text(*lines)

    def text(self, *sentences: str) -> None:
        """Write a paragraph for each text that is not empty."""
        for each in sentences:
            if each.strip():
                drawn(self.body, "p", each)

    def pairs(self, *rows: tuple[str, str]) -> None:
        """Write what each name stands for."""
        listed = drawn(self.body, "dl")
        for name, told in rows:
            drawn(listed, "dt", name)
            drawn(listed, "dd", told)

    def show(self, table: TextTable) -> None:
        """Write a table with every column."""
        shown = drawn(self.body, "table")
        if table.title:
            drawn(shown, "caption", table.title)
        kinds = [{"class_": "number"} if name in table.right else {} for name in table.columns]
        for part, tag, lines in (("thead", "th", [table.columns]), ("tbody", "td", table.rows)):
            held = drawn(shown, part)
            for line in lines:
                row = drawn(held, "tr")
                for cell, kind in zip(line, kinds, strict=True):
                    drawn(row, tag, cell, **kind)

    def command(self, told: str, line: str) -> None:
        """Write a command with what it is for."""
        drawn(drawn(self.body, "p", f"{told}: "), "code", line)

    def heading(self, text: str) -> None:
        """Begin a section."""
        drawn(self.body, "h2", text)

    def figure(self, picture: Element, told: str) -> None:
        """Write a picture with what it shows."""
        figure = drawn(self.body, "figure")
        figure.append(picture)
        drawn(figure, "figcaption", told)

    def fragment(self) -> str:
        """Return what stands on the page, for another page to show."""
        return "".join(tostring(each, encoding="unicode", method="html") for each in self.body)

    def html(self) -> str:
        """Return the page."""
        return "<!DOCTYPE html>\n" + tostring(self._root, encoding="unicode", method="html") + "\n"


class Markdown(Screen):
    """Markdown, as a step summary of GitHub shows it."""

    def __init__(self) -> None:
        """Begin an empty text."""
        self._text = StringIO()
        super().__init__(self._text, 1)

    def text(self, *sentences: str) -> None:
        """Write a paragraph for each text."""
        self.lines(*(f"{_plain(each)}\n" for each in sentences))

    def pairs(self, *rows: tuple[str, str]) -> None:
        """Write a list."""
        self.lines(*(f"- **{_plain(name)}** {_plain(told)}" for name, told in rows), "")

    def show(self, table: TextTable) -> None:
        """Write a table with every column."""
        rule = ["---:" if name in table.right else "---" for name in table.columns]
        head = [f"### {_plain(table.title)}", ""] if table.title else []
        first, *others = (f"| {' | '.join(map(_plain, row))} |" for row in (table.columns, *table.rows))
        self.lines(*head, first, f"| {' | '.join(rule)} |", *others, "")

    def __str__(self) -> str:
        """Return what was written."""
        return self._text.getvalue()


def _plain(text: str) -> str:
    """Return a text that Markdown and HTML leave as it is."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]|#<>" else letter for letter in " ".join(text.split()))
