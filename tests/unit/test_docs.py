"""The design pages cannot rot where a machine can tell: tables made of headers, names that must exist, links.

`python -m tests.unit.test_docs` writes the generated parts of the pages anew, references of commands and settings too.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from echomq_worker import acl
from echomq_worker.conformance import scenarios
from echomq_worker.keyspace import Keys
from echomq_worker.probes.instruments import INSTRUMENTS
from echomq_worker.rows import _FIELDS
from echomq_worker.script import Script, scripts
from tests.support import cli_reference, keyspace, settings_reference

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
PAGES = [*sorted(DOCS.glob("*.md")), *DECISIONS]
REWRITE = "python -m tests.unit.test_docs"

SLOT = re.compile(r"^-- (KEYS|ARGV)\[\d+(\.\.\.)?\]\s+(.*)$")
INCLUDE = re.compile(r"^-- include: ")
CONTINUED = "--   "
RETURNS = "-- returns "
OURS = "(ours"


def joined(lines: Iterable[str]) -> list[str]:
    """The lines with those that begin further right put behind the one that they go on."""
    found: list[str] = []
    for line in lines:
        if line.startswith(CONTINUED) and found:
            found[-1] += f" {line.removeprefix('--').strip()}"
        else:
            found.append(line)
    return found


def header(script: Script) -> list[str]:
    """The lines of a contract, from the first to the last `returns`, each with those that go on further right."""
    lines = joined(line for line in script.source.splitlines() if line.startswith("--"))
    last = max(i for i, line in enumerate(lines) if line.startswith(RETURNS))
    return lines[: last + 1]


def promise(script: Script) -> str:
    """What a script says it does, on one line, without its name."""
    said: list[str] = []
    for line in header(script):
        if SLOT.match(line) or line.startswith(RETURNS):
            break
        said.append(line.removeprefix("-- "))
    return " ".join(said).removeprefix(f"{script.name}: ")


def is_ours(script: Script) -> bool:
    """Whether a script's promise says that the verb is an addition of this project."""
    return OURS in promise(script)


def cell(texts: Iterable[str]) -> str:
    """A table's cell of several lines."""
    return "<br>".join(text.replace("|", "\\|") for text in texts) or "none"


def slots(script: Script, table: str) -> list[str]:
    """The keys or arguments as the header has them: a name in code, `…` where any number may follow, its meaning."""
    found: list[str] = []
    for line in header(script):
        match = SLOT.match(line)
        if match is None or match[1] != table:
            continue
        name, _, meaning = match[3].partition("  ")
        more = " …" if match[2] else ""
        shown = name if "`" in name else f"`{name}`"
        found.append(f"{shown}{more} {meaning}".rstrip())
    return found


def replies(script: Script) -> list[str]:
    """What the header says that a script returns, a text for each line of it."""
    found = [line.removeprefix(RETURNS) for line in header(script) if line.startswith(RETURNS)]
    return [re.sub(r"<(\w+)>", r"\\<\1\\>", text) for text in found]


def verbs(*, ours: bool) -> str:
    """The table of the plain verbs, or of ours."""
    rows = ["| verb | KEYS | ARGV | replies |", "|---|---|---|---|"]
    for script in scripts().values():
        if is_ours(script) == ours:
            cells = (slots(script, "KEYS"), slots(script, "ARGV"), replies(script))
            rows.append(f"| `{script.name}` | {' | '.join(map(cell, cells))} |")
    return "\n".join(rows)


def layers() -> str:
    """The layers of pyproject.toml, the highest first."""
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return "\n".join(["```", *next(one["layers"] for one in contracts if one["id"] == "layers"), "```"])


def contracts() -> str:
    """The table of the conformance scenarios."""
    rows = [f"| `{one.name}` | {one.contract} |" for one in scenarios().values()]
    return "\n".join(["| scenario | contract |", "|---|---|", *rows])


def users() -> str:
    """The line of each role for one queue, as `echomq-worker acl` prints it."""
    shown = []
    for role in acl.roles():
        rules = textwrap.fill(
            " ".join(acl.rules([role], ["emails"])), 110, break_long_words=False, break_on_hyphens=False
        )
        shown.append(f"`echomq-worker acl {role} --queue emails`:\n\n```\nACL SETUSER {role}\n{rules}\n```")
    return "\n\n".join(shown)


def instruments() -> str:
    """The table of metrics, in the order in which they are exported."""
    rows = ["| metric | kind | of | labels | what |", "|---|---|---|---|---|"]
    for one in INSTRUMENTS:
        labels = ", ".join(f"`{label}`" for label in one.labels) or "none"
        rows.append(f"| `{one.name}` | {one.kind} | {one.scope} | {labels} | {one.help} |")
    return "\n".join(rows)


GENERATED: dict[str, tuple[str, Callable[[], str]]] = {
    "plain verbs": ("protocol.md", lambda: verbs(ours=False)),
    "our verbs": ("protocol.md", lambda: verbs(ours=True)),
    "layers": ("design.md", layers),
    "metrics": ("metrics.md", instruments),
    "users": ("acl.md", users),
    "commands": ("cli.md", cli_reference.overview),
    "exit codes": ("cli.md", cli_reference.exit_codes),
    "reference": ("cli.md", cli_reference.reference),
    "settings": ("settings.md", settings_reference.table),
    "scenarios": ("conformance.md", contracts),
}


def part(name: str) -> re.Pattern[str]:
    """Where a generated part stands in its page."""
    return re.compile(rf"(?<=<!-- {name}: begin -->\n).*?\n?(?=<!-- {name}: end -->)", re.DOTALL)


def rewrite() -> None:
    """Write every generated part anew."""
    for name, (page, made) in GENERATED.items():
        text = (DOCS / page).read_text()
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        (DOCS / page).write_text(f"{text.partition(begin)[0]}{begin}{made()}\n{end}{text.partition(end)[2]}")


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading, its own heading left out."""
    behind = (DOCS / page).read_text().partition(f"\n{heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", behind, re.MULTILINE)
    assert table is not None, f"docs/{page}: no table behind {heading!r}"
    return [[text.strip() for text in line.strip("|\n").split(" | ")] for line in table[0].splitlines()[2:]]


@pytest.mark.parametrize("name", GENERATED)
def test_what_is_generated_is_as_the_code_has_it(name: str) -> None:
    """The tables of verbs are the headers of the scripts, the layers those of pyproject.toml."""
    page, made = GENERATED[name]

    found = part(name).findall((DOCS / page).read_text())

    assert found == [f"{made()}\n"], f"docs/{page}, part {name!r}, is out of date: {REWRITE}"


def test_every_verb_stands_in_one_table() -> None:
    """No script is left out, and the promise of each of ours says that it is."""
    both = verbs(ours=False) + verbs(ours=True)

    assert [name for name in scripts() if both.count(f"| `{name}` |") != 1] == []
    assert {name for name, one in scripts().items() if is_ours(one)} >= {"claim_many", "settle", "release", "disown"}


def test_every_key_is_in_the_table_of_keys() -> None:
    """Each key that the package can name is a row of docs/protocol.md, section 1, and of a type that tests check."""
    keys = Keys("q")
    made: Sequence[str] = [getattr(keys, name) for name in Keys.__slots__ if name not in {"queue", "base"}]
    job, group = "JOB00000000001", "GRP00000000001"
    parts = [keys.job, keys.logs, keys.lock, keys.dependencies]
    parts += [keys.processed_children, keys.failed_children, keys.unsuccessful_children]
    named = [*made, *(one(job) for one in parts), keys.lane(group)]
    named += [keys.receipt("<consumer>"), keys.dedup("<key>"), keys.repeat_record("<name>")]
    table = {name for row in rows_of("protocol.md", "## 1. Keys") for name in re.findall(r"`([^`]+)`", row[0])}

    shown = {name.replace(job, "<id>").replace(group, "<group>") for name in named}

    assert shown - table == set()
    assert {row[1].split(",")[0] for row in rows_of("protocol.md", "## 1. Keys")} <= {
        *(kind for _, kind, _ in keyspace._TABLE),
        "channel",
    }


def test_every_field_of_a_row_is_real() -> None:
    """Each field in the table is one that a script names, and each that the package reads is in the table."""
    fields = {name for row in rows_of("protocol.md", "### The row") for name in re.findall(r"`(\w+)`", row[0])}
    source = "".join(script.source for script in scripts().values())

    assert [field for field in sorted(fields) if f"'{field}'" not in source] == []
    assert set(_FIELDS) <= fields


def test_every_module_has_its_place_in_the_house() -> None:
    """docs/design.md names every module of the package, and none that is not there."""
    folder = PROJECT / "echomq_worker"
    there = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")} | {
        *("cli", "conformance", "probes", "web"),
    }
    named = {name for row in rows_of("design.md", "## 1. The house") for name in re.findall(r"`(\w+)`", row[0])}

    assert named == there


def test_every_transition_has_a_script() -> None:
    """docs/states.md credits each transition to scripts that exist."""
    credited = [re.findall(r"`(\w+)`", row[2]) for row in rows_of("states.md", "## Transitions")]

    assert all(credited)
    assert {name for names in credited for name in names} - set(scripts()) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link is a file, and where it names a place in it, the heading is there."""
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        target = page.parent / link if link else page
        assert target.exists(), f"{page.name}: {link}"
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        slugs = {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, f"{page.name}: {link}#{anchor}"


def test_the_index_has_every_page() -> None:
    """docs/README.md links to each page and each decision."""
    index = (DOCS / "README.md").read_text()
    names = [str(page.relative_to(DOCS)) for page in PAGES if page.name != "README.md"]

    assert [name for name in names if f"]({name})" not in index] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decisions_have_one_form(page: Path) -> None:
    """Number and title, then context, choice, why and consequence, in a few lines."""
    text = page.read_text()

    assert re.match(rf"# {page.stem[:4]} \S", text)
    assert re.findall(r"^\*\*(\w+)\.\*\* \S", text, re.MULTILINE) == ["Context", "Choice", "Why", "Consequence"]
    assert len(text.splitlines()) <= 30


def test_decisions_have_numbers_of_their_own() -> None:
    """Each number once; one that nobody has is one that was given to somebody who did not need it."""
    numbers = [page.stem[:4] for page in DECISIONS]

    assert len(set(numbers)) == len(numbers)


if __name__ == "__main__":
    rewrite()
