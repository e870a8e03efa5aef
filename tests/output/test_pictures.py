"""The README's pictures show what the demo shows today: tests/tools/pictures.py makes them."""

from __future__ import annotations

import pytest
from tools import pictures


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_the_text_of_a_picture_is_todays(name):
    today = pictures.picture(name, pictures.shown(pictures.PICTURES[name]))
    text = pictures.text_of(today)
    assert len(text) > 500
    assert pictures.text_of(pictures.path_of(name).read_text()) == text, (
        "run tests/tools/pictures.py"
    )
