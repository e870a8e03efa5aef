"""Lists are read ahead: the next page, and those of other namespaces, while one is decoded."""

from __future__ import annotations

import json
import threading
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st
from support import api_error, raises_api_error


def a_page(path: str, number: int, is_last: bool) -> str:
    metadata = {} if is_last else {"continue": str(number + 1)}
    return json.dumps({"metadata": metadata, "items": [path, number]}, separators=(",", ":"))


class Lists:
    """Lists of so many pages each, and how they are read."""

    def __init__(self, pages: list[int]) -> None:
        self.pages = {f"list-{number}": count for number, count in enumerate(pages)}
        self.lock = threading.Lock()
        self.begun: list[tuple[str, int]] = []
        self.ended = 0
        self.most = 0  # at a time

    def read(self, path: str, token: str) -> str:
        number = int(token or 0)
        with self.lock:
            self.begun.append((path, number))
            self.most = max(self.most, len(self.begun) - self.ended)
        page = a_page(path, number, number + 1 == self.pages[path])
        with self.lock:
            self.ended += 1
        return page


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_pages_come_in_their_order_and_few_are_read_ahead(tool, pages):
    lists = Lists(pages)
    expected = [(path, n) for path, count in lists.pages.items() for n in range(count)]
    taken = 0
    for page in tool.read_ahead(list(lists.pages), lists.read):
        assert tuple(json.loads(page)["items"]) == expected[taken]
        taken += 1
        assert len(lists.begun) <= taken + 4
    assert taken == len(expected)
    assert sorted(lists.begun) == sorted(expected)
    assert lists.most <= 4


def test_the_next_page_is_read_while_one_is_decoded(tool):
    began = defaultdict(threading.Event)

    def read(path, token):
        number = int(token or 0)
        began[number].set()
        return a_page(path, number, number == 3)

    pages = tool.read_ahead(["list"], read)
    next(pages)
    next(pages)  # the first two; the third is being read
    assert began[2].wait(30)
    assert not began[3].is_set()  # it is not known yet
    assert len(list(pages)) == 2


def test_four_namespaces_are_read_at_a_time(tool):
    together = threading.Barrier(4)

    def read(path, token):
        if path != "list-0":
            together.wait(30)  # fails, unless four read at a time
        return a_page(path, 0, True)

    assert len(list(tool.read_ahead([f"list-{n}" for n in range(9)], read))) == 9


def test_an_error_comes_where_its_page_would_be(tool):
    def read(path, token):
        if path == "list-2":
            raise api_error(tool, 403, "no")
        return a_page(path, 0, True)

    pages = tool.read_ahead(["list-0", "list-1", "list-2", "list-3"], read)
    assert [json.loads(next(pages))["items"][0] for _ in range(2)] == ["list-0", "list-1"]
    with raises_api_error(tool):
        next(pages)


def test_one_page_of_one_list_needs_no_thread(tool):
    def read(path, token):
        assert threading.current_thread() is threading.main_thread()
        return a_page(path, 0, True)

    assert len(list(tool.read_ahead(["list"], read))) == 1
