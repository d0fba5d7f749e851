"""The dashboard on queues that are large: a page costs what it shows, not what the queue holds."""

from __future__ import annotations

import time

import pytest
from redis.asyncio import Redis

from tests.support.plain import QUEUE, Queue, job
from tests.support.web import Browser, browsing, ids_of

MANY = 100_000
_LIMIT_S = 0.3
# Commands of a page: what is shown, the numbers in its head, what the other pages that are open ask meanwhile.
_COMMANDS = 1_500


async def bury(raw: Redis, first: int, last: int) -> None:
    """Dead jobs of these numbers, in the server's own loop."""
    keys = Queue(raw).keys
    source = """
    for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do
      local id = 'JOB' .. string.format('%011d', n)
      redis.call('HSET', KEYS[2] .. 'job:' .. id, 'state', 'dead', 'attempts', 3, 'failures', 3, 'payload',
        '{"number":' .. n .. '}', 'last_error', n % 5000 == 7 and 'rare' or 'TimeoutError: ' .. n)
      redis.call('ZADD', KEYS[1], 0, id)
    end
    """
    for start in range(first, last + 1, 10_000):
        await raw.eval(source, 2, keys.dead, keys.base, start, min(start + 9_999, last))


async def cost(raw: Redis, browser: Browser, where: str) -> tuple[int, float, list[str]]:
    """Of one page: the commands that the server has run for it, the time that it took, the jobs that it lists."""
    before = int((await raw.info("stats"))["total_commands_processed"])
    started = time.perf_counter()
    page = await browser.get(where)
    took = time.perf_counter() - started
    ran = int((await raw.info("stats"))["total_commands_processed"]) - before
    assert page.status_code == 200
    return ran, took, ids_of(page.text)


async def test_a_page_of_a_hundred_thousand_dead_jobs_costs_what_one_of_six_hundred_does(url: str, raw: Redis) -> None:
    """As many commands, the first page as the last; and the fastest of five is there within 300 ms, or on a slow
    machine within twice the time of the short one.
    """
    await bury(raw, 1, 600)
    dead = f"/q/{QUEUE}/dead"
    async with browsing(url) as browser:
        short = [await cost(raw, browser, dead) for _ in range(3)]
        few = min(ran for ran, _, _ in short)
        await bury(raw, 601, MANY)
        looks = [await cost(raw, browser, dead) for _ in range(5)]
        deep = await cost(raw, browser, f"{dead}?before={job(120)}")
        job_page = await cost(raw, browser, f"/q/{QUEUE}/job/{job(50_000)}")

    assert looks[0][2] == [job(MANY - n) for n in range(50)]
    assert deep[2] == [job(119 - n) for n in range(50)]
    assert min(ran for ran, _, _ in looks) <= few * 1.2
    assert max(few, deep[0]) < _COMMANDS
    assert job_page[0] < 200
    assert min(took for _, took, _ in looks) < max(_LIMIT_S, 2 * min(took for _, took, _ in short))


@pytest.mark.parametrize(("error", "found"), [("TimeoutError", 50), ("rare", 1), ("nothing", 0)])
async def test_a_filter_looks_at_so_many_and_goes_on_at_the_next_page(
    url: str, raw: Redis, error: str, found: int
) -> None:
    """However rare what it looks for is: a page is bounded, says how far it came, and the next one goes on there."""
    await bury(raw, 1, 12_000)
    async with browsing(url) as browser:
        ran, _, listed = await cost(raw, browser, f"/q/{QUEUE}/dead?error={error}")
        assert ran < 7_000
        assert len(listed) == found
        if error == "nothing":
            page = await browser.read(f"/q/{QUEUE}/dead?error={error}")
            assert "None among the 5,000 looked at" in page
            rest = await browser.read(f"/q/{QUEUE}/dead?error={error}&before={job(2_001)}")
            assert "No dead job matches" in rest
        if error == "rare":
            second = await browser.get(f"/q/{QUEUE}/dead?error=rare&before={job(7_001)}")
            assert ids_of(second.text) == [job(5_007)]


async def test_an_age_is_where_a_page_begins_and_nothing_is_passed_over(url: str, raw: Redis) -> None:
    """Old ones behind a hundred thousand new ones are found in as few steps."""
    await bury(raw, 1, 3_000)
    async with browsing(url) as browser:
        few = (await cost(raw, browser, f"/q/{QUEUE}/dead"))[0]
        ran, _, listed = await cost(raw, browser, f"/q/{QUEUE}/dead?older=60")
    assert len(listed) == 50
    assert ran <= few
