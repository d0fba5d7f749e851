"""settle: what each kind of verdict writes, and that it counts once however often it is sent.

Source: protocol section 4 (complete, retry, delay, "Sent twice", "A dead row takes only complete"). Sets, slots and
tokens have a file of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from echomq_worker.errors import ServerError
from tests.support.own import Own, complete, delay, merged, retry
from tests.support.plain import FAR_MS, GROUP, Queue, State, Within, job, row

ROW = f"job:{job(1)}"
HELD = "3:ab"


def in_hand(number: int = 1, **fields: Any) -> State:
    """A job with token 3 under a live lease of ours, and everything that an ending has to clear."""
    known: dict[str, Any] = {"held": HELD, "crashes": "1:3", "failures": 1} | fields
    return {f"job:{job(number)}": row("active", 3, **known), "active": {job(number): FAR_MS}}


async def locked(queue: Queue, *numbers: int) -> None:
    """A keeper's mark and a log line on each of these jobs."""
    for number in numbers:
        await queue.raw.set(queue.keys.lock(job(number)), "3", px=60_000)
        await queue.put({f"job:{job(number)}:logs": ["line"]})


LOGS = {f"{ROW}:logs": ["line"]}


async def test_complete_leaves_nothing(own: Own, queue: Queue) -> None:
    """Row, logs, lock and a flow parent's subkeys are gone, the completion is counted."""
    await queue.put(in_hand())
    await locked(queue, 1)
    subkeys = {f"{ROW}:{name}": {job(2): "r"} for name in ("processed", "failed", "unsuccessful")}
    await queue.put(subkeys | {f"{ROW}:dependencies": "0"})

    assert await own.settle(complete(job(1), HELD)) == ["done"]

    assert await queue.state() == {"metrics:completed": {"count": "1"}}


SAYS_MORE: dict[str, tuple[State, str, State]] = {
    "settled": ({"settled": "3:delayed"}, "stale", {}),
    "group": ({"group": GROUP}, "done", {"gactive": {}}),
    "dedup": ({"dedup": "k"}, "done", {"de:k": ""}),
    "parent": ({"parent": job(2)}, "done", {f"job:{job(2)}:processed": {job(1): job(1)}}),
}


@pytest.mark.parametrize(("more", "answer", "follows"), SAYS_MORE.values(), ids=SAYS_MORE)
async def test_what_the_row_says_of_a_job_counts(
    own: Own, queue: Queue, more: State, answer: str, follows: State
) -> None:
    """Told as a flat job's completion, beside another: an answer, a group, a dedup key, a parent count all the same."""
    waiting = {f"job:{job(2)}": row("awaiting_children"), f"job:{job(2)}:dependencies": "2"}
    around: State = {"gactive": {GROUP: "1"}, "de:k": job(1), **waiting}
    jobs = merged({ROW: row("active", 3, held=HELD, **more), "active": {job(1): FAR_MS}}, in_hand(3))
    await queue.put(jobs | around)

    assert await own.settle(complete(job(3), HELD), complete(job(1), HELD)) == ["done", answer]

    after = await queue.state()
    assert (ROW in after) == (answer == "stale")
    assert {key: after.get(key, type(wanted)()) for key, wanted in follows.items()} == follows


async def test_the_group_that_was_told_counts(own: Own, queue: Queue) -> None:
    """Of a job whose row has lost its group: the slot that its claim took is given back."""
    await queue.put(in_hand() | {"gactive": {GROUP: "1"}})

    assert await own.settle(complete(job(1), HELD, GROUP)) == ["done"]

    assert await queue.state() == {"metrics:completed": {"count": "1"}}


async def test_retry_schedules(own: Own, queue: Queue) -> None:
    """failures + 1, last_error, state, the score on the server's clock; the token stays, held, crashes and lock go."""
    await queue.put(in_hand())
    await locked(queue, 1)
    before = await queue.now_ms()

    assert await own.settle(retry(job(1), HELD, delay_ms=2_000)) == ["scheduled"]

    due = Within(before + 2_000, await queue.now_ms() + 2_000)
    assert await queue.state() == LOGS | {
        ROW: row("scheduled", 3, failures=2, last_error="boom", settled="3:scheduled"),
        "schedule": {job(1): due},
    }


async def test_retry_buries(own: Own, queue: Queue) -> None:
    """failures >= max_attempts: dead at score 0, counted."""
    await queue.put(in_hand())
    await locked(queue, 1)

    assert await own.settle(retry(job(1), HELD, max_attempts=2)) == ["dead"]

    assert await queue.state() == LOGS | {
        ROW: row("dead", 3, failures=2, last_error="boom", settled="3:dead"),
        "dead": {job(1): 0},
        "metrics:failed": {"count": "1"},
    }


@pytest.mark.parametrize(("max_attempts", "answers"), [(1, ["dead"]), (2, ["scheduled", "dead"])])
async def test_dead_after_exactly_max_attempts(own: Own, queue: Queue, max_attempts: int, answers: list[str]) -> None:
    """Failures are counted, not claims: a job that was claimed seven times has its attempts all the same."""
    await queue.put(in_hand() | {ROW: row("active", 7, held="7:ab")})

    given = []
    for token in range(7, 7 + len(answers)):
        given += await own.settle(retry(job(1), f"{token}:ab", max_attempts=max_attempts, delay_ms=0))
        await own.promote()
        await own.claim_many(1)

    assert given == answers


@pytest.mark.parametrize(("mode", "value"), [("in", 2_000), ("at", 5), ("at", -5), ("in", 0)])
async def test_delay_is_no_failure(own: Own, queue: Queue, mode: str, value: int) -> None:
    """Scheduled in so many ms of the server's clock or at that very ms; attempts and failures stay."""
    await queue.put(in_hand())
    await locked(queue, 1)
    before = await queue.now_ms()

    assert await own.settle(delay(job(1), HELD, mode=mode, value=value)) == ["delayed"]

    due = Within(before + value, await queue.now_ms() + value) if mode == "in" else value
    assert await queue.state() == LOGS | {
        ROW: row("scheduled", 3, failures=1, settled="3:delayed"),
        "schedule": {job(1): due},
    }


KINDS: dict[str, tuple[Callable[..., tuple[Any, ...]], dict[str, Any], list[str]]] = {
    "complete": (complete, {}, ["done", "gone", "gone"]),
    "retry": (retry, {}, ["scheduled"] * 3),
    "death": (retry, {"max_attempts": 2}, ["dead"] * 3),
    "delay": (delay, {}, ["delayed"] * 3),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_sent_three_times_counts_once(own: Own, queue: Queue, kind: str) -> None:
    """The second and third find the answer of the first, or no row, and write nothing."""
    verdict, options, answers = KINDS[kind]
    await queue.put(in_hand())

    given = await own.settle(verdict(job(1), HELD, **options))
    after_one = await queue.state()
    given += await own.settle(verdict(job(1), HELD, **options))
    given += await own.settle(verdict(job(1), HELD, **options))

    assert given == answers
    assert await queue.state() == after_one


@pytest.mark.parametrize("kind", KINDS)
async def test_three_times_in_one_call_counts_once(own: Own, queue: Queue, kind: str) -> None:
    """Each verdict of a call is decided on what those before it left behind."""
    verdict, options, answers = KINDS[kind]
    await queue.put(in_hand())

    assert await own.settle(*[verdict(job(1), HELD, **options)] * 3) == answers

    state = await queue.state()
    if kind == "complete":
        assert state == {"metrics:completed": {"count": "1"}}
    else:
        failures = 1 if kind == "delay" else 2
        assert isinstance(state[ROW], dict)
        assert state[ROW]["failures"] == str(failures)
        assert ("metrics:failed" in state) == (kind == "death")


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
async def test_one_claim_has_one_verdict(own: Own, queue: Queue, first: str, second: str) -> None:
    """Another kind of verdict with the same token is stale; only a dead row still takes that its work is done."""
    await queue.put(in_hand())
    await own.settle(KINDS[first][0](job(1), HELD, **KINDS[first][1]))
    before = await queue.state()

    (answer,) = await own.settle(KINDS[second][0](job(1), HELD, **KINDS[second][1]))

    if first == "complete":
        expected = "gone"
    elif (first, second) == ("death", "complete"):
        expected = "done"
    else:
        same = first == second or {first, second} == {"retry", "death"}
        expected = KINDS[first][2][0] if same else "stale"
    assert answer == expected
    if expected != "done":
        assert await queue.state() == before


VERDICTS = [complete, retry, delay]


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("held", ["2:ab", "4:ab", "30:ab", "3:cd", "3", "", ":ab"])
async def test_another_claims_verdict_is_stale(
    own: Own, queue: Queue, verdict: Callable[..., tuple[Any, ...]], held: str
) -> None:
    """Another token, or another random under the same token, writes nothing. (A token alone is a plain client's.)"""
    await queue.put(in_hand())
    await locked(queue, 1)
    before = await queue.state()

    answers = await own.settle(verdict(job(1), held))

    if held == "3":
        assert answers != ["stale"]
    else:
        assert answers == ["stale"]
        assert await queue.state() == before


async def test_a_foreign_holder_has_no_random(own: Own, queue: Queue) -> None:
    """Where `held` does not stand the token decides alone."""
    await queue.put({ROW: row("active", 3), "active": {job(1): FAR_MS}})

    assert await own.settle(complete(job(1), "3:ab")) == ["done"]


async def test_an_id_that_was_enqueued_again_is_another_job(own: Own, queue: Queue) -> None:
    """It starts at token 1 again; the first holder's late verdicts do not touch it."""
    await own.enqueue(job(1))
    (first,) = (await own.claim_many(1)).jobs
    await own.settle(complete(job(1), first.held))
    await own.enqueue(job(1))
    (second,) = (await own.claim_many(1, random="cd")).jobs
    assert (first.token, second.token) == (1, 1)
    before = await queue.state()

    for verdict in VERDICTS:
        assert await own.settle(verdict(job(1), first.held)) == ["stale"]

    assert await queue.state() == before


DEAD = {ROW: row("dead", 3, failures=3, last_error="stalled"), "dead": {job(1): 0}, "metrics:failed": {"count": "1"}}


async def test_a_dead_row_takes_complete(own: Own, queue: Queue) -> None:
    """The work is done: out of dead, the row deleted, counted."""
    await queue.put(DEAD)

    assert await own.settle(complete(job(1), HELD)) == ["done"]

    assert await queue.state() == {"metrics:failed": {"count": "1"}, "metrics:completed": {"count": "1"}}


async def test_a_late_retry_on_a_dead_row(own: Own, queue: Queue) -> None:
    """It counts its failure and answers dead, once; the reason of the death and the count of deaths stay."""
    await queue.put(DEAD)

    assert await own.settle(*[retry(job(1), HELD, max_attempts=9)] * 2) == ["dead", "dead"]

    assert await queue.state() == DEAD | {ROW: row("dead", 3, failures=4, last_error="stalled", settled="3:dead")}


async def test_a_late_delay_on_a_dead_row_is_refused(own: Own, queue: Queue) -> None:
    """A dead job is not scheduled by who had it last."""
    await queue.put(DEAD)

    assert await own.settle(delay(job(1), HELD)) == ["stale"]

    assert await queue.state() == DEAD


BAD: dict[str, list[Any]] = {
    "no such kind": ["x", job(2), HELD, ""],
    "a complete that is cut short": ["c", job(2), HELD],
    "a retry that is cut short": ["r", job(2), HELD, "", 1, 3],
    "a delay of no time": ["r", job(2), HELD, "", "soon", 3, "e"],
    "no attempts": ["r", job(2), HELD, "", 1, "many", "e"],
    "no number": ["r", job(2), HELD, "", "nan", 3, "e"],
    "a run-at of no time": ["d", job(2), HELD, "", "at", "noon"],
    "a delay that is cut short": ["d", job(2), HELD, "", "in"],
}


@pytest.mark.parametrize("bad", BAD)
async def test_what_is_not_well_formed_is_refused_whole(own: Own, queue: Queue, bad: str) -> None:
    """One verdict that cannot be read, behind a good one: an error, and neither is written."""
    await queue.put(merged(in_hand(1), in_hand(2)))
    before = await queue.state()

    with pytest.raises(ServerError, match="well-formed"):
        await own.settle(complete(job(1), HELD), tuple(BAD[bad]))

    assert await queue.state() == before


async def test_no_verdict_no_answer(own: Own, queue: Queue) -> None:
    """An empty call is none."""
    assert await own.settle() == []
    assert await queue.state() == {}
