"""report.html: one page that stands alone, escaped, the same bytes each time, and drawn by a browser."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cli.page import Markdown
from cli.report import front_plot, html_report, reports
from podplan.planning import PlanResult

VOID = {"meta", "br", "img", "input", "link", "hr"}


class Outline(HTMLParser):
    """The tags of a page, which must close in order, and their attributes."""

    def __init__(self, page: str) -> None:
        """Read a page."""
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Hold that it closes the last one."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note its words."""
        self.words.append(data)


@pytest.fixture(scope="module")
def page(found: PlanResult) -> str:
    """Its page."""
    return html_report(found)


def test_the_page_stands_alone_and_closes_what_it_opens(found: PlanResult, page: str) -> None:
    """No script, no address that a browser would fetch; every pool, operator group and rank is on it."""
    outline = Outline(page)
    assert not outline.open
    tags = [tag for tag, _ in outline.seen]
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert not any(key in ("src", "href") or key.startswith("on") for _, held in outline.seen for key in held)
    assert "default-src 'none'" in page
    assert tags.count("svg") == tags.count("figure") == 6
    best = found.best
    told = " ".join(outline.words)
    assert all(f"{role}-{n} rank 0," in told for role, pool in best.pools() for n in range(pool.instances))
    assert "plan qwen3-8b --hw h100 --devices 4 --shape disaggregated" in told and "TPOT limit 50 ms" in told


def test_the_same_question_gives_the_same_reports(found: PlanResult, page: str) -> None:
    """However long the search took."""
    again = replace(found, seconds=99.0)
    assert reports(again)["report.html"] == page
    assert reports(again) == reports(found)


def test_what_is_typed_is_escaped(found: PlanResult) -> None:
    """A model's path may hold anything, on a page and in a step summary."""
    evil = replace(found.asked, flags=replace(found.asked.flags, model="<script>alert('x')</script>|`y`"))
    page = html_report(replace(found, asked=evil))
    assert "<script" not in page and "&lt;script&gt;" in page
    summary = Markdown()
    summary.table(["a|b"], [["<b> | `c`"]])
    assert r"| a\|b |" in str(summary) and r"| \<b\> \| \`c\` |" in str(summary)


def test_a_picture_of_the_front_says_what_it_shows(found: PlanResult) -> None:
    """Question, limit, frontier, chosen plan."""
    plot, best = front_plot(found), found.best
    assert plot.question == "plan qwen3-8b --hw h100 --devices 4 --shape disaggregated"
    assert [told for _, told in plot.x_limits] == ["TPOT limit 50 ms"]
    assert [mark.x for mark in plot.marks] == [1 / best.tpot.mean]
    frontier = plot.curves[0]
    assert frontier.line and sorted(frontier.x, reverse=True) == frontier.x
    heights = [y for y in frontier.y if y is not None]
    assert sorted(heights) == heights
