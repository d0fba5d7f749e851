"""The account of a chaos run can fail: each wrong that is planted in the evidence is a finding that names it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.chaos.account import Account, make_account
from bench.chaos.evidence import Evidence, Exit, Fire, Grid, Happened, Order, Run, Terms, Try
from bench.chaos.plan import SERVER

TERMS = Terms(lease_ms=5_000, beat_ms=500, margin_ms=1_500)
ID, OTHER, THIRD = (f"JOB0000000000{number}" for number in (1, 2, 3))


def run(id: str = ID, start_ms: float = 1_000, end_ms: float | None = 1_100, **more: Any) -> Run:
    """A run by worker 0 that was done after 100 ms."""
    outcome = "" if end_ms is None else "done"
    given: dict[str, Any] = {"worker": "0", "pid": 10, "attempts": 1, "queue": "plain", "outcome": outcome} | more
    return Run(id=id, start_ms=start_ms, end_ms=end_ms, held=f"{given['attempts']}:{start_ms}", **given)


def again(start_ms: float = 8_000, **more: Any) -> Run:
    """The same job once more, by worker 1."""
    given: dict[str, Any] = {"worker": "1", "pid": 11, "attempts": 2} | more
    return run(start_ms=start_ms, end_ms=start_ms + 100, **given)


def seen(*runs: Run, **more: Any) -> Evidence:
    """Evidence of these runs, each id enqueued once and acknowledged."""
    by_id: dict[str, list[Run]] = {}
    for one in sorted(runs, key=lambda one: one.start_ms):
        by_id.setdefault(one.id, []).append(one)
    orders = {id: Order(id, of_id[0].queue) for id, of_id in by_id.items()} | more.pop("orders", {})
    tries = {id: [Try(id, 500, 510, "admitted")] for id in orders} | more.pop("tries", {})
    serves = {"plain": ["0", "1"]}
    return Evidence(TERMS, orders, tries, by_id, more.pop("faults", ()), serves=serves, pumps=["0"], **more)


def fault(kind: str, begin_ms: float, for_ms: float = 0, target: str = "0", **more: Any) -> Happened:
    """A fault of worker 0."""
    return Happened(kind, target, begin_ms, begin_ms + for_ms, **more)


def whats(account: Account) -> set[str]:
    """What was found, in a word each."""
    assert account.balanced == (not account.findings)
    return {finding.what for finding in account.findings}


def of(*runs: Run, **more: Any) -> set[str]:
    """What an account of this evidence finds."""
    return whats(make_account(seen(*runs, **more)))


def test_what_went_well_balances() -> None:
    """One job done, one dead as it should be, one that its producer does not know of and nobody has seen."""
    evidence = seen(
        run(),
        run(OTHER, outcome="failed"),
        orders={OTHER: Order(OTHER, "plain", "fail"), THIRD: Order(THIRD, "plain")},
        tries={THIRD: [Try(THIRD, 500, 900, "unsure")]},
        places={OTHER: ("dead", "RuntimeError: as asked")},
        completed={"plain": 1},
    )
    account = make_account(evidence)
    assert account.balanced
    assert (account.enqueued, account.unsure, dict(account.places)) == (2, 1, {"done": 1, "dead": 1})


@pytest.mark.parametrize("place", ["pending", "active", "schedule", "lane", "awaiting_children"])
def test_what_has_not_drained_is_found(place: str) -> None:
    """An id that is still in a set when everything is over is counted there, and named."""
    account = make_account(seen(run(end_ms=None), places={ID: (place, "")}))
    assert account.places[place] == account.enqueued == 1
    assert whats(account) == {"not drained"}


def test_a_lost_id_is_found() -> None:
    """Acknowledged, in no set, without a run that was done: lost. Also where it had begun, and where it had to die."""
    assert of(orders={ID: Order(ID, "plain")}) == {"lost"}
    assert of(run(end_ms=None)) == {"lost"}
    assert of(run(outcome="failed"), orders={ID: Order(ID, "plain", "reject")}) == {"lost"}
    assert of(run(end_ms=None), tries={ID: [Try(ID, 500, 900, "unsure")]}) == {"lost"}, (
        "it was seen, so it was enqueued"
    )


def test_a_death_without_a_reason_is_found() -> None:
    """A job that had nothing to die of is dead; one that crashed too often needs as many faults."""
    dead = {ID: ("dead", "crashed: 5 claims in a row never ended")}
    assert of(run(end_ms=None), places={ID: ("dead", "ValueError")}) == {"dead without reason"}
    assert of(run(end_ms=None), places=dead) == {"dead without reason"}
    assert of(run(end_ms=None), places=dead, faults=[fault("kill", 1_000 + at) for at in range(5)]) == set()


def test_an_id_of_nobody_is_found() -> None:
    """A run of an id that no producer made."""
    evidence = seen(run())
    assert whats(make_account(replace(evidence, orders={}, tries={}))) == {"stranger"}


KILL = fault("kill", 1_050, pids=frozenset({10}))
EXPLAINS = {
    "kill": (run(end_ms=None), again(7_000), KILL),
    "kill behind the end": (run(), again(7_000), fault("kill", 1_150)),
    "deploy": (run(outcome="cancelled"), again(1_200), fault("deploy", 1_050, 100)),
    "disowned": (run(end_ms=None), again(7_000), fault("deploy", 1_050, 2_000)),
    "freeze": (run(end_ms=9_000), again(7_000), fault("freeze_long", 1_050, 6_000)),
    "blackhole": (run(end_ms=9_000), again(7_000), fault("blackhole", 1_050, 3_000)),
    "server": (run(end_ms=9_000), again(7_000), fault("server_kill", 1_050, 3_000, SERVER)),
    "chain": (run(end_ms=9_000), again(7_000), fault("reset", 1_050)),
}
CHAIN = {"chain": [fault("blackhole", 1_200, 600)]}


@pytest.mark.parametrize("name", EXPLAINS)
def test_a_fault_explains_a_duplicate(name: str) -> None:
    """A second run with a fault that can have caused it is a duplicate, counted by its kind, and no finding."""
    first, second, cause = EXPLAINS[name]
    account = make_account(seen(first, second, faults=[cause, *CHAIN.get(name, [])]))
    assert account.balanced, account.findings
    assert sum(account.duplicates.values()) == 1
    assert "unexplained" not in account.duplicates


@pytest.mark.parametrize("name", EXPLAINS)
def test_no_fault_or_one_elsewhere_explains_none(name: str) -> None:
    """The same runs without the fault, with one of another worker, with one that is over, or one that comes later."""
    first, second, cause = EXPLAINS[name]
    for faults in (
        [],
        [replace(cause, target="1")],
        [replace(cause, begin_ms=cause.begin_ms - 60_000, end_ms=cause.end_ms - 60_000)],
        [replace(cause, begin_ms=cause.begin_ms + 60_000, end_ms=cause.end_ms + 60_000)],
    ):
        assert of(first, second, faults=faults) == {"unexplained duplicate"}, faults


@pytest.mark.parametrize(
    "harmless",
    [
        fault("reset", 1_050),
        fault("lose_reply", 1_050),
        fault("answer_loading", 1_050),
        fault("delay", 1_050, 6_000),
        fault("clock_step", 1_050),
        fault("script_flush", 1_050, 0, SERVER),
        fault("blackhole", 1_050, 1_000),
        fault("freeze_short", 1_050, 1_000),
        fault("kill", 1_050, pids=frozenset({99})),
    ],
    ids=lambda one: one.kind,
)
def test_what_loses_no_lease_explains_nothing(harmless: Happened) -> None:
    """A lost connection or reply, a slow one, a short freeze: the job must not run twice for it."""
    assert of(run(end_ms=9_000), again(7_000), faults=[harmless]) == {"unexplained duplicate"}


def test_a_job_that_asked_to_run_again_is_no_duplicate() -> None:
    """A failure and a delay are followed by another run, but not before they have ended."""
    account = make_account(seen(run(outcome="failed"), again(1_400)))
    assert account.balanced
    assert not account.duplicates
    assert of(run(outcome="failed", end_ms=2_000), again(1_400)) == {"unexplained duplicate"}


def test_another_life_needs_an_attempt_without_an_answer() -> None:
    """A first attempt after a run that was done: the producer sent the id again, in doubt; else it must not be."""
    doubt = [Try(ID, 500, 900, "unsure"), Try(ID, 1_500, 1_600, "admitted")]
    assert of(run(), again(2_000, attempts=1), tries={ID: doubt}) == set()
    assert of(run(), again(2_000, attempts=1)) == {"unexplained duplicate"}


def test_a_run_that_begins_behind_its_lease_is_its_holders_fault() -> None:
    """A worker that was frozen between claim and run begins a job that others have done: its own freeze explains it."""
    late = [run(start_ms=7_000, end_ms=7_100, attempts=2, worker="1", pid=11), again(9_000, attempts=1, pid=12)]
    freeze = fault("freeze_long", 1_000, 7_900, target="1", pids=frozenset({12}))
    assert of(*late, faults=[freeze]) == set()
    assert of(*late) == of(*late, faults=[replace(freeze, pids=frozenset({11}))]) == {"unexplained duplicate"}


def test_one_claim_that_runs_twice_is_found() -> None:
    """A claim is run once, whatever happens to its reply."""
    twice = [run(end_ms=None), replace(again(7_000), held="1:1000")]
    assert of(*twice, faults=[KILL]) == {"one claim, two runs"}


def test_a_wait_that_is_too_long_is_found() -> None:
    """A job of a killed worker starts again within lease, beat and margin, unless a fault holds up all who could."""
    late = again(1_050 + 7_001)
    assert of(run(end_ms=None), late, faults=[KILL]) == {"waited too long"}
    assert of(run(end_ms=None), again(1_050 + 6_999), faults=[KILL]) == set()
    account = make_account(seen(run(end_ms=None), late, faults=[KILL, fault("server_freeze", 3_000, 900, SERVER)]))
    assert account.balanced
    assert account.longest_wait is None
    assert account.waits[0].ms == 7_001


GRID = Grid("tick", first_ms=10_000, every_ms=1_000, until_ms=13_000, host_minus_ms=0)


def repeated(*moments: int, faults: Sequence[Happened] = ()) -> set[str]:
    """What is found of a repeat that fired at these moments."""
    fires = [Fire("tick", f"JOB{number:011}", moment, moment) for number, moment in enumerate(moments)]
    runs = [run(fire.id, fire.now_ms + 5, fire.now_ms + 9, queue="ticks") for fire in fires]
    # Sent once more as EVAL, by the same Pump.
    fires += fires[:1]
    # The Pump asks in vain now and then: of an occurrence that came to nothing there is no run.
    asked = Fire("tick", "JOB99999999999", 10_001, 10_001)
    return of(*runs, fires=[*fires, asked], grids=[GRID], faults=faults, orders={}, tries={})


def test_a_repeat_that_fires_once_in_each_period_balances() -> None:
    """Late is fine, within the period."""
    assert repeated(10_004, 11_900, 12_001) == set()


def test_a_repeat_that_fires_twice_is_found() -> None:
    """Two occurrences in one period, whatever faults there were."""
    assert repeated(10_004, 11_001, 11_900, 12_001) == {"fired twice"}
    assert repeated(10_004, 11_001, 11_900, 12_001, faults=[fault("kill", 11_000)]) == {"fired twice"}


def test_a_period_without_a_fire_needs_a_fault() -> None:
    """One that did not fire is found, unless every Pump or the server was held up."""
    assert repeated(10_004, 12_001) == {"missed a period"}
    assert repeated(10_004, 12_001, faults=[fault("freeze_long", 10_900, 1_000)]) == set()
    assert repeated(10_004, 12_001, faults=[fault("freeze_long", 10_900, 1_000, target="1")]) == {"missed a period"}


def flow(*, parent_at: float = 2_000, read: tuple[int, int] = (1, 1), policy: str = "id", **more: Any) -> set[str]:
    """What is found of a parent with a child that is done and one that dies."""
    orders = {
        ID: Order(ID, "flow", children=(OTHER, THIRD)),
        OTHER: Order(OTHER, "flow", parent=ID),
        THIRD: Order(THIRD, "parts", "reject", parent=ID, policy=policy),
    }
    runs = [run(OTHER, queue="flow"), run(THIRD, queue="parts", outcome="failed")]
    if parent_at:
        runs.append(run(start_ms=parent_at, end_ms=parent_at + 100, queue="flow", read=read))
    return of(*runs, orders=orders, places={THIRD: ("dead", "as asked")} | more.pop("places", {}), **more)


def test_a_parent_runs_when_its_children_have_ended() -> None:
    """With the values of those that are done and the deaths that are ignored; not before, not without, not wrong."""
    assert flow() == set()
    assert flow(parent_at=1_050) == {"parent too early"}
    assert flow(read=(2, 0)) == {"parent read wrong"}
    assert flow(parent_at=0) == {"lost"}


def test_a_parent_that_dies_with_its_child_does_not_run() -> None:
    """Policy fp: dead without a run; one that ran is found, and one that is gone."""
    dead = {ID: ("dead", "child JOB… died")}
    assert flow(policy="fp", parent_at=0, places=dead) == set()
    assert flow(policy="fp", places=dead) == {"parent ran"}
    assert flow(policy="fp", parent_at=0) == {"lost"}


def test_a_lane_above_its_limit_is_found() -> None:
    """More runs of a group at a time than its limit need a lost lease among them."""
    crowd = [run(id, 1_000 + at, 3_000, group="GRP1", queue="lanes") for at, id in enumerate((ID, OTHER, THIRD))]
    assert of(*crowd, limits={"GRP1": 3}) == set()
    assert of(*crowd, limits={"GRP1": 2}) == {"above the limit"}
    assert of(*crowd, limits={"GRP1": 2}, faults=[fault("kill", 1_001)]) == set()


def test_what_is_left_over_and_what_the_server_counts() -> None:
    """Whatever the server holds that it should not is a finding, and a count of completions that is not ours."""
    assert of(run(), leftovers=["lanes: gactive of GRP1 is 1"]) == {"left over"}
    assert of(run(), completed={"plain": 1}) == set()
    assert of(run(), completed={"plain": 2}) == {"counted wrong"}
    assert of(run(), completed={"plain": 0}) == {"counted wrong"}


def test_an_end_of_a_worker_that_nobody_asked_for_is_found() -> None:
    """Code 1 is never fine; 3 is where the server was away; 0 where it was asked to stop; a signal by a fault."""

    def ended(code: int, *faults: Happened, **more: Any) -> set[str]:
        return of(run(), exits=[Exit("0", 10, code, 2_000, **more)], faults=faults)

    assert ended(0, asked=True) == ended(-9, fated=True) == set()
    assert ended(3, fault("server_kill", 1_000, 900, SERVER)) == set()
    assert ended(1) == ended(1, asked=True) == ended(0) == ended(3) == ended(-11) == {"bad exit"}


def test_what_the_server_forgot_is_counted_as_lost_by_it() -> None:
    """A restart without the file: ids from before it that are nowhere are the server's loss, later ones are not."""
    orders = {id: Order(id, "plain") for id in (ID, OTHER)}
    tries = {ID: [Try(ID, 500, 510, "admitted")], OTHER: [Try(OTHER, 3_000, 3_010, "admitted")]}
    account = make_account(seen(orders=orders, tries=tries, forgotten_ms=2_000))
    assert account.lost_by_server == 1
    assert [finding.id for finding in account.findings] == [OTHER]


def test_a_server_that_forgot_owes_no_repeats_and_no_limits() -> None:
    """What was registered and set before it is gone with the rest, and holds up to there."""
    crowd = [run(id, 2_000 + at, 3_000, group="GRP1", queue="lanes") for at, id in enumerate((ID, OTHER))]
    late = {"limits": {"GRP1": 1}, "grids": [replace(GRID, first_ms=1_000)], "forgotten_ms": 1_999}
    assert of(*crowd, **late) == set()
    assert of(*crowd, **late | {"forgotten_ms": 2_005}) == {"above the limit", "missed a period"}
