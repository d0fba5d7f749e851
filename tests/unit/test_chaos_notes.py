"""What processes note is read back as it was, and the tap knows which occurrence a Pump made when."""

from __future__ import annotations

import os
from pathlib import Path

from bench.chaos.collect import Tap, collect, supervisors
from bench.chaos.evidence import Evidence, Happened, Terms
from bench.chaos.notes import Book
from echomq_worker.packing import pack
from echomq_worker.script import scripts

TERMS = Terms(5_000, 500, 1_500)


def collected(folder: Path) -> Evidence:
    """The evidence of a folder, without workers and faults."""
    return collect(folder, terms=TERMS, faults=(), fires=(), grids=(), workers=())


def test_runs_and_orders_are_read_back(tmp_path: Path) -> None:
    """A run that ended, one that never did, an attempt without an answer and one with; in the order of time."""
    producers, worker = Book(tmp_path / "orders", "producers"), Book(tmp_path / "runs-0-1", "0")
    producers.note("order", "JOB1", "flow", "done", "-", "-", "fp", "JOB2,JOB3")
    producers.note("order", "JOB2", "lanes", "fail", "GRP1", "JOB1", "id", "-")
    producers.note("try", "JOB1")
    producers.note("answer", "JOB1", "unsure", "ConnectionLost")
    producers.note("try", "JOB1")
    producers.note("answer", "JOB1", "admitted")
    producers.note("try", "JOB2")
    worker.note("up", 1)
    worker.note("start", "flow", "JOB1", 1, "1:a", "-")
    worker.note("start", "lanes", "JOB2", 1, "1:b", "GRP1")
    worker.note("read", "flow", "JOB1", 1, "1:a", "-", 2, 1)
    worker.note("done", "flow", "JOB1", 1, "1:a", "-")
    producers.close()
    worker.close()

    seen = collected(tmp_path)
    assert (seen.orders["JOB1"].children, seen.orders["JOB1"].group) == (("JOB2", "JOB3"), "")
    assert (seen.orders["JOB2"].does, seen.orders["JOB2"].group, seen.orders["JOB2"].policy) == ("fail", "GRP1", "id")
    assert [one.answer for one in seen.tries["JOB1"]] == ["unsure", "admitted"]
    assert [one.answer for one in seen.tries["JOB2"]] == ["unsure"], "an answer that never came"
    (ended,), (open_run,) = seen.runs["JOB1"], seen.runs["JOB2"]
    assert (ended.outcome, ended.read, ended.held, ended.pid) == ("done", (2, 1), "1:a", os.getpid())
    assert ended.end_ms is not None
    assert ended.end_ms >= ended.start_ms
    assert (open_run.end_ms, open_run.outcome, open_run.group) == (None, "", "GRP1")


def test_a_claim_that_starts_twice_is_two_runs(tmp_path: Path) -> None:
    """Nothing is folded together that the account has to see."""
    book = Book(tmp_path / "runs-0-1", "0")
    for _ in range(2):
        book.note("start", "plain", "JOB1", 1, "1:a", "-")
    book.close()
    assert len(collected(tmp_path).runs["JOB1"]) == 2


def test_only_a_gap_without_computing_is_the_machines(tmp_path: Path) -> None:
    """A process that computed meanwhile was not starved: what it did is its own doing."""
    book = Book(tmp_path / "runs-0-1", "0")
    book.note("gap", 1_000, 2_000, 50)
    book.note("gap", 5_000, 6_000, 900)
    book.close()
    pids = frozenset({os.getpid()})
    freeze = Happened("freeze_long", "0", 900.0, 1_900.0, pids)
    assert collect(tmp_path, terms=TERMS, faults=[freeze], fires=(), grids=(), workers=()).faults == [freeze]
    assert collected(tmp_path).faults == [Happened("starved", "0", 1_000.0, 2_000.0, pids)]


def test_the_tap_hears_occurrences() -> None:
    """Of `repeat_fire`, by its digest or its text, the names, the ids and the moment; of anything else nothing."""
    tap, script = Tap(), scripts()["repeat_fire"]
    keys = ("emq:{ticks}:repeat", "emq:{ticks}:pending")
    rest = (2, *keys, "emq:{ticks}:", 1_234, "two", "JOB00000000001", "three", "JOB00000000002")
    for head in (("EVALSHA", script.sha), ("EVAL", script.source)):
        tap.command(pack((*head, *rest)))
    tap.command(pack(("EVALSHA", scripts()["reap"].sha, *rest)))
    tap.command(pack(("SCRIPT", "LOAD", script.source)))
    assert [(fire.name, fire.id, fire.now_ms) for fire in tap.fires] == [
        ("two", "JOB00000000001", 1_234),
        ("three", "JOB00000000002", 1_234),
    ] * 2


def test_a_process_names_its_supervisor(tmp_path: Path) -> None:
    """Its first line says who started it; one whose first line is cut off, or another, names nobody."""
    (tmp_path / "runs-2-11").write_text("up\t1.0\t2\t11\t9\nstart\t2.0\t2\t11\tplain\tid\t1\theld\t-\n")
    (tmp_path / "runs-2-12").write_text("start\t2.0\t2\t12\tplain\tid\t1\theld\t-\n")
    (tmp_path / "runs-1-13").write_text("up\t1.0\t1\t13\t9\n")
    assert supervisors(tmp_path, {"2"}) == {11: 9}
