"""docs/guarantees.md and the README promise nothing that no test shows."""

from __future__ import annotations

import re

import pytest

from tests.support.references import PROJECT, REFERENCE, docstrings

PAGE = PROJECT / "docs" / "guarantees.md"
README = PROJECT / "README.md"
# What is no promise: what stands before the first, the names of the tests, and the output of a run.
OTHER = {"The tests", "The chaos run"}
NOTE = re.compile(r"\[\^([\w-]+)\]")


def sections(page: str) -> dict[str, str]:
    """The text of each section that promises something, under its heading."""
    parts = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)[1:]
    return {title: text for title, text in zip(parts[::2], parts[1::2], strict=True) if title not in OTHER}


def sentences(section: str) -> list[str]:
    """The sentences of bullets and paragraphs, each with the notes behind it; a line that ends with a colon is none."""
    found: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=- )", section.strip()):
        text = " ".join(block.split()).removeprefix("- ")
        if text and not text.endswith(":"):
            found += re.findall(r".+?[.!?](?:\[\^[\w-]+\])*(?=\s|$)|.+$", text)
    return [sentence.strip() for sentence in found]


def notes(page: str) -> dict[str, list[str]]:
    """What each note names: references to tests."""
    return {name: REFERENCE.findall(text) for name, text in re.findall(r"^\[\^([\w-]+)\]: (.+)$", page, re.MULTILINE)}


def test_every_sentence_names_its_test() -> None:
    """Behind each sentence of a section that promises stand the tests that show it.

    Report 16 (tobymao/saq#286).
    """
    page = PAGE.read_text()
    promises = sections(page)

    assert [one for text in promises.values() for one in sentences(text) if not NOTE.search(one)] == []
    assert [title[:2] for title in promises][:5] == ["1.", "2.", "3.", "4.", "5."]
    assert all(len(sentences(text)) > 3 for text in promises.values())


def test_every_test_that_is_named_is_there() -> None:
    """Each note that is used stands below, each that stands there is used, and its tests exist."""
    page = PAGE.read_text()
    used = {name for text in sections(page).values() for name in NOTE.findall(text)}
    named = notes(page)

    assert used == set(named)
    assert [name for name, tests in named.items() if not tests] == []
    assert {test for tests in named.values() for test in tests} - set(docstrings()) == set()


def test_a_sentence_without_a_test_is_told() -> None:
    """Wherever it stands in its bullet; a note counts for the sentence before it only."""
    found = sentences("- It holds: always.[^a]\n- This too.\n  And this.[^b][^c]\n\nLimits:\n\n- None at all\n")

    assert found == ["It holds: always.[^a]", "This too.", "And this.[^b][^c]", "None at all"]
    assert sections("# T\n\nIntro.\n\n## 1. One\nText.\n\n## The tests\n[^a]: x\n") == {"1. One": "Text.\n\n"}


@pytest.mark.parametrize("number", range(1, 6))
def test_the_readme_has_each_promise_with_its_command(number: int) -> None:
    """As on the page, and with the command that shows it, whose file is there."""
    (title,) = [title for title in sections(PAGE.read_text()) if title.startswith(f"{number}. ")]
    (line,) = re.findall(rf"^{number}\. (.+(?:\n   .+)*)", README.read_text(), re.MULTILINE)
    command = re.search(r"`pytest (tests/[\w/]+\.py)`", line)

    assert title.removeprefix(f"{number}. ") in " ".join(line.split())
    assert command is not None
    assert (PROJECT / command[1]).is_file()
