"""Two proxies write while four trainers take leases and claim rollouts: nothing is ever held by two at a
time.
"""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from itertools import pairwise

import httpx
import pytest

from harnessgym.proxy_client import ControlClient, trust_for
from harnessgym.store import TraceStore, leases, policies, rollouts, runs
from harnessgym.store.rollouts import GroupSpec
from harnessgym.task import Task
from tests.support.conversations import KEY, Conversations, ProxyProcess, Talker

TTL_S = 0.6
ENOUGH = 40
"""Rollouts that the trainers finish before they may stop."""
TRAINERS = "abcd"
TRAINER = """
import random, select, sys, time
from harnessgym.outcome.failure import StopReason
from harnessgym.store import TraceStore, leases, rollouts
from harnessgym.store.rollouts import RolloutOutcome

url, run, name, ttl = *sys.argv[1:4], float(sys.argv[4])
draw = random.Random(name)

def say(*words):
    print(*words, flush=True)

def update_weights(store):
    resource, asked = f"update:{draw.randrange(2)}", time.time()
    if not store.write(lambda conn: leases.acquire(conn, resource, name, ttl)):
        return
    say("holds", resource, time.time(), asked + ttl)
    for _ in range(draw.randrange(5)):
        time.sleep(ttl / 4)
        asked = time.time()
        if not store.write(lambda conn: leases.renew(conn, resource, name, ttl)):
            say("lost", resource)  # it came too late, and may take the lease again after another had it
            return
        say("holds", resource, time.time(), asked + ttl)
    say("gives", resource, time.time())
    store.write(lambda conn: leases.release(conn, resource, name))

def run_rollouts(store):
    asked = time.time()
    rows = store.write(lambda conn: rollouts.claim(conn, run, name, ttl, 2))
    for row in rows:
        say("holds", f"{row.group_id}:{row.slot}", time.time(), asked + ttl)
    time.sleep(draw.uniform(0, ttl / 4))
    for row in rows:
        say("gives", f"{row.group_id}:{row.slot}", time.time())
        outcome = RolloutOutcome(row.id, StopReason.FINISHED, "valid", {"reward": 1.0})
        if store.write(lambda conn: rollouts.finish(conn, outcome)):
            say("finished", f"{row.group_id}:{row.slot}")
    for lost in store.read(lambda conn: rollouts.lost(conn, run)):
        gone = RolloutOutcome(lost, StopReason.NODE_LOST, "infrastructure_error")
        store.write(lambda conn: rollouts.fail(conn, gone, sys.maxsize))

with TraceStore.open(url) as store:
    say("ready")
    sys.stdin.readline()
    while not select.select([sys.stdin], [], [], 0)[0]:
        update_weights(store)
        run_rollouts(store)
"""


def train(store, run_id, writers, talkers):
    """What each trainer reports while writers submit more. One trainer is killed while it holds a lease. The
    others continue until one of them has taken it over and enough rollouts have finished.
    """
    command = [sys.executable, "-c", TRAINER, store.url, run_id]
    trainers = {
        name: subprocess.Popen(
            [*command, name, str(TTL_S)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in TRAINERS
    }
    for process in trainers.values():
        assert process.stdout.readline() == "ready\n"
    for process in trainers.values():
        process.stdin.write("go\n")
        process.stdin.flush()
    for writer in writers:
        writer.start()
    victim, said = trainers["a"], []
    while sum(line.startswith("holds update") for line in said) < 4 or not said[-1].startswith(
        "holds update"
    ):
        said.append(victim.stdout.readline())
        assert said[-1]
    victim.send_signal(signal.SIGKILL)
    resource = said[-1].split()[1]
    killed_at = time.monotonic()
    while store.read(lambda conn: leases.holder_of(conn, resource)) in (None, "a"):
        assert time.monotonic() < killed_at + 60, f"nobody took over {resource}"
        time.sleep(0.02)
    while (
        store.read(lambda conn: rollouts.rollout_states(conn, run_id)).get("finished", 0) <= ENOUGH
        or any(len(talker.got) <= 10 for talker in talkers)
        or time.monotonic() < killed_at + 3 * TTL_S
    ):
        assert time.monotonic() < killed_at + 60, "too little was trained and said"
        time.sleep(0.1)
    rest = {
        name: process.communicate(timeout=60)[0].splitlines(keepends=True)
        for name, process in trainers.items()
    }
    for writer in writers:
        writer.join()
    rest["a"] = said + rest["a"]
    return {name: [line.split() for line in lines if line.endswith("\n")] for name, lines in rest.items()}


def holdings(said):
    """By resource: (from, until, who), where until is the end that its holder knows of."""
    out = defaultdict(list)
    for name, lines in said.items():
        held = {}
        for what, resource, *times in lines:
            if what == "holds":
                held[resource] = (held[resource][0] if resource in held else float(times[0]), float(times[1]))
            elif what == "gives":
                begin, until = held.pop(resource)
                out[resource].append((begin, min(until, float(times[0])), name))
            elif what == "lost":
                out[resource].append((*held.pop(resource), name))
        for resource, (begin, until) in held.items():
            out[resource].append((begin, until, name))
    return {resource: sorted(spans) for resource, spans in out.items()}


async def talk(proxies, rollout_id, conversations, train):
    """Four conversations at each proxy, for as long as the trainers run."""
    async with httpx.AsyncClient(timeout=30, trust_env=False, verify=trust_for("http:")) as http:
        enough = asyncio.Event()
        for proxy in proxies:
            async with ControlClient(proxy.control_url, KEY) as control:
                opened = [await control.open_session(rollout_id) for _ in range(4)]
            conversations.talkers += [Talker(http, proxy.url, session) for session in opened]
        talking = [asyncio.create_task(talker.talk(enough)) for talker in conversations.talkers]
        try:
            return await asyncio.to_thread(train)
        finally:
            enough.set()
            await asyncio.gather(*talking)


def submit(store, run_id, first):
    """As many groups as the trainers will not run out of, one transaction each."""
    policy = store.write(lambda conn: policies.register(conn, run_id, "policy"))
    task = store.write(lambda conn: runs.add_task(conn, "set", Task("t", "Do it.")))
    for ordinal in range(first, first + 20):
        spec = GroupSpec(run_id, task, policy, "train", ordinal, 0, {}, ("h",) * 4, "process", (0,) * 4)
        store.write(lambda conn, spec=spec: rollouts.submit(conn, spec))


@pytest.mark.postgres
def test_two_proxies_and_four_trainers_hold_nothing_twice(postgres):
    url = postgres.create_database()
    conversations = Conversations(url)
    with TraceStore.create(url) as store:
        run_id, rollout_id = store.write(conversations.prepare)
        submit(store, run_id, 100)
        with (
            ProxyProcess(url, run_id) as one,
            ProxyProcess(url, run_id) as other,
            TraceStore.open(url) as second,
        ):
            writers = [
                threading.Thread(target=submit, args=(each, run_id, at))
                for each, at in ((store, 200), (second, 300))
            ]
            said = asyncio.run(
                talk(
                    (one, other),
                    rollout_id,
                    conversations,
                    lambda: train(store, run_id, writers, conversations.talkers),
                )
            )
        found = holdings(said)
        for resource, spans in found.items():
            for (_, until, holder), (begin, _, another) in pairwise(spans):
                assert until <= begin, (
                    f"{resource} was held by {holder} until {until} and by {another} from {begin}"
                )
        killed = next(
            line for line in reversed(said["a"]) if line[0] == "holds" and line[1].startswith("update")
        )
        ends, successors = (
            float(killed[3]),
            [span for span in found[killed[1]] if span[2] != "a" and span[0] > float(killed[2])],
        )
        assert ends <= successors[0][0]
        assert {name for spans in found.values() for *_, name in spans} == set(TRAINERS)
        finished = [line[1] for lines in said.values() for line in lines if line[0] == "finished"]
        assert len(finished) == len(set(finished)) > 20
        assert len(finished) == store.read(lambda conn: rollouts.rollout_states(conn, run_id))["finished"]
        conversations.check(store)
        assert (conversations.lost, conversations.half, conversations.findings) == (set(), set(), set())
        assert all(len(talker.got) > 10 for talker in conversations.talkers)
