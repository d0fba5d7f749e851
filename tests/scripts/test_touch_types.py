"""A key of another type is met before the first write too: the script has written nothing.

Source: protocol section 4 ("Touch every key before the first write, in every script: kind, existence, fence, and each
derived key"). The cases are those of test_touch, where a key cannot be reached at all: EXISTS would do there, here
only a command of the key's own type does.
"""

from __future__ import annotations

import pytest

from echomq_worker.errors import EchoMQError
from echomq_worker.script import scripts
from tests.scripts.test_touch import CASES, NAMES, ROW, Verb
from tests.support.flows import FlowVerbs
from tests.support.keyspace import Value
from tests.support.plain import Queue, State, job, row

# A set where the protocol has none, a list where it has one.
WRONG: dict[str, Value] = {name: {"wrong"} if name != "paused" else ["wrong"] for name in NAMES}

ALL_CASES: dict[str, tuple[State, Verb]] = CASES | {
    "add_log": (
        {ROW: row()},
        lambda plain: plain.run("add_log", (plain.keys.job(job(1)), plain.keys.logs(job(1))), "line", 1),
    ),
    "update_progress": (
        {ROW: row()},
        lambda plain: plain.run("update_progress", (plain.keys.job(job(1)),), "50", job(1), plain.keys.base),
    ),
}


@pytest.mark.parametrize("case", ALL_CASES)
async def test_a_key_of_another_type_leaves_everything_as_it_was(case: str, flow: FlowVerbs, queue: Queue) -> None:
    """Each key in turn: the verb does not use it and succeeds, or it fails and the whole keyspace is unchanged."""
    state, verb = ALL_CASES[case]
    refused = set()
    await queue.put(state)
    found = await queue.state()
    for name in NAMES:
        await queue.raw.flushall()
        await queue.put(state | {name: WRONG[name]})
        try:
            await verb(flow)
        except EchoMQError:
            refused.add(name)
            before = found | {name: WRONG[name]}
            assert await queue.state() == before, f"{case}: written although {name} has another type"
    await queue.raw.flushall()
    assert refused, f"{case}: no key was ever refused, the test is blind"


def test_every_script_is_held_to_it() -> None:
    """A script that no case is named after is not looked at."""
    named = {case.split()[0] for case in ALL_CASES}
    missing = set(scripts()) - named
    assert not missing, f"no case in tests/scripts/test_touch.py for {', '.join(sorted(missing))}"
