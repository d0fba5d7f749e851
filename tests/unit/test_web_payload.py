"""A payload on a page and in a form: nothing of it is lost, nothing hidden, nothing changed but blanks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.errors import InvalidArgument
from echomq_worker.web import payload as payloads
from echomq_worker.web.payload import compacted, draft, indented, payload_of, preview, shown

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.lists(VALUES, max_size=4) | st.dictionaries(st.text(max_size=6), VALUES, max_size=4)


@given(DOCUMENTS, st.booleans())
def test_json_is_indented_and_nothing_else(value: object, plain: bool) -> None:
    """The same value, in the same words: taken together again it is the compact form, character by character."""
    text = json.dumps(value, ensure_ascii=plain, separators=(",", ":"))

    assert json.loads(indented(text)) == value
    assert compacted(indented(text)) == text
    assert indented(indented(text)) == indented(text)


def test_numbers_and_doubled_names_are_as_they_were() -> None:
    """What a parser would make alike stays apart: 1.0 and 1, 1e2, a long number, a name that stands twice."""
    text = '{"a":1.0,"a":1,"b":1e2,"c":12345678901234567890.10,"d":[],"e":{},"f":[{}]}'

    assert indented(text) == (
        '{\n  "a": 1.0,\n  "a": 1,\n  "b": 1e2,\n  "c": 12345678901234567890.10,\n  "d": [],\n  "e": {},\n'
        '  "f": [\n    {}\n  ]\n}'
    )
    assert compacted(indented(text)) == text


@given(DOCUMENTS)
def test_saving_what_a_form_shows_changes_no_value(value: object) -> None:
    """Compact JSON comes back byte for byte, with what cannot be seen written as an escape: the same value."""
    payload = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    form = draft(payload)
    assert form is not None

    back = payload_of(form.kind, form.text.replace("\n", "\r\n"), compact=form.compact)

    assert json.loads(back) == value


@given(st.binary(max_size=200))
def test_any_bytes_go_through_a_form(payload: bytes) -> None:
    """Of whatever kind, with the line breaks that a browser makes: not edited it is the same."""
    form = draft(payload)
    assert form is not None

    back = payload_of(form.kind, form.text.replace("\n", "\r\n"), compact=form.compact)

    assert back == payload or json.loads(back) == json.loads(payload)


@given(st.text(alphabet="ab \n\r\t\u202e\u200d\u05d0\x07é🙂", max_size=40))
def test_text_goes_through_a_form_as_it_is(text: str) -> None:
    """Line breaks, tabs, direction marks: text that a form would change is edited as bytes."""
    form = draft(text.encode())
    assert form is not None

    assert payload_of(form.kind, form.text.replace("\n", "\r\n"), compact=form.compact) == text.encode()


@pytest.mark.parametrize(
    ("payload", "kind", "text", "cut"),
    [
        (None, "none", "", False),
        (b"", "text", "", False),
        (b"plain \xc3\xa9", "text", "plain é", False),
        (b'{"a":[1]}', "json", '{\n  "a": [\n    1\n  ]\n}', False),
        (b'"lone"', "text", '"lone"', False),
        (b"{broken", "text", "{broken", False),
        (b"\x00\xff", "hex", "00000000  00 ff                                            ..", False),
        ("a\u202eb\u200bc".encode(), "text", "a\\u202eb\\u200bc", False),
        (b"\x1b[2J", "hex", "00000000  1b 5b 32 4a                                      .[2J", False),
        ('{"a":"\u202e"}'.encode(), "json", '{\n  "a": "\\u202e"\n}', False),
    ],
)
def test_what_a_page_shows(payload: bytes | None, kind: str, text: str, cut: bool) -> None:
    """JSON indented, text as it is, bytes in hex; what cannot be seen as an escape."""
    found = shown(payload)

    assert (found.kind, found.text, found.cut) == (kind, text, cut)
    assert found.size == (None if payload is None else len(payload))


def test_a_long_payload_is_cut_and_says_so() -> None:
    """At the limit, in the middle of a character too; the size is that of the whole."""
    text = shown(("é" * 50).encode(), limit=11)
    assert (text.kind, text.text, text.size, text.cut) == ("text", "é" * 5, 100, True)
    binary = shown(b"\xff" * 100, limit=16)
    assert (binary.kind, binary.size, binary.cut, binary.text.count("ff")) == ("hex", 100, True, 16)
    document = shown(json.dumps(["x" * 100]).encode(), limit=20)
    assert (document.kind, document.cut, document.text) == ("text", True, '["xxxxxxxxxxxxxxxxxx')
    assert draft(b"x" * (payloads.EDIT_BYTES + 1)) is None


def test_nesting_without_end_is_text() -> None:
    """What no parser reads is shown as it stands, and can be edited."""
    deep = b"[" * 100_000
    assert shown(deep, limit=200_000).kind == "text"
    assert draft(deep) == payloads.Draft("text", deep.decode())
    with pytest.raises(InvalidArgument, match="payload"):
        payload_of("json", deep.decode())


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("json", '{\n  "secret": 1,,\n}', "not JSON at line 2, column 15"),
        ("json", "", "not JSON at line 1, column 1"),
        ("hex", "0", "hex digits"),
        ("hex", "zz", "hex digits"),
        ("text", "\udc80", "UTF-8"),
    ],
)
def test_what_a_form_cannot_mean_is_told_and_not_quoted(kind: str, text: str, said: str) -> None:
    """Where it is wrong, and nothing of what it holds."""
    with pytest.raises(InvalidArgument, match=said) as caught:
        payload_of(kind, text)
    assert "secret" not in str(caught.value)


def test_no_json_is_saved_where_that_is_wanted() -> None:
    """Whoever says so may store any text."""
    assert payload_of("json", "{oops", anyway=True) == b"{oops"


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        (None, ""),
        (b'{"a":\n 1}', '{"a": 1}'),
        (b"x" * 500, "x" * payloads.PREVIEW_CHARACTERS + "…"),
        (b"\x00\x01", "00 01"),
        (b"\xff" * 30, "ff " * 23 + "ff …"),
        ("a\u202eb".encode(), "a\\u202eb"),
    ],
)
def test_a_preview_is_one_short_line(payload: bytes | None, line: str) -> None:
    """For lists: cut, folded, nothing hidden."""
    assert preview(payload) == line
