"""What a session keeps for clients that come back."""

from dataclasses import dataclass

from harnessgym.message import Sampling
from proxies.call import Call
from proxies.continuation import Prompt
from proxies.dialect import ModelRequest, Problem, Stamp
from proxies.recent_calls import RecentCalls

REMEMBERED = 8


@dataclass
class Watched(Call):
    """A call that counts how often it is looked at."""

    looks: int = 0

    @property
    def over(self) -> bool:
        """Whether no retry needs it."""
        self.looks += 1
        return super().over


def call(number: int, digest: str = "", *, failed: bool = False) -> Watched:
    request = ModelRequest(model="m", messages=())
    made = Watched(
        id=f"c{number}",
        ordinal=number,
        digest=digest or f"d{number}",
        call_prefix="",
        request=request,
        prompt=Prompt([], None, [], None),
        prompt_len=0,
        prompt_hash="",
        prompt_segment="p",
        chain="",
        sampling=Sampling(),
        stamp=Stamp(f"c{number}", "m", 0),
    )
    if failed:
        made.problem = Problem("upstream", "It has failed.")
    return made


def test_calls_of_equal_requests_are_found_newest_first() -> None:
    recent = RecentCalls(REMEMBERED)
    one, other, two = call(1, "same"), call(2), call(3, "same")
    for each in (one, other, two):
        recent.add(each)
    assert recent.equal("same") == [two, one]
    assert recent.equal("unknown") == []
    assert (recent.get("c2"), recent.get("c9")) == (other, None)


def test_a_call_that_is_not_over_is_never_forgotten() -> None:
    recent = RecentCalls(REMEMBERED)
    waiting = [call(number) for number in range(50)]
    ended = [call(number, failed=True) for number in range(50, 550)]
    for each in (*waiting[:25], *ended, *waiting[25:]):
        recent.add(each)
    assert all(recent.get(each.id) is each and recent.equal(each.digest) == [each] for each in waiting)
    # The latest ones that are over are remembered, the others are not.
    assert all(recent.get(each.id) is each for each in ended[-REMEMBERED:])
    assert len(recent) <= 2 * (50 + REMEMBERED)
    assert [recent.equal(each.digest) for each in ended[:300]] == [[]] * 300


def test_a_call_is_looked_at_a_few_times_however_many_wait() -> None:
    recent = RecentCalls(REMEMBERED)
    waiting = [call(number) for number in range(2_000)]
    ended = [call(number, failed=True) for number in range(2_000, 4_000)]
    for pair in zip(waiting, ended, strict=True):
        for each in pair:
            recent.add(each)
    looks = sum(each.looks for each in (*waiting, *ended))
    assert looks <= 3 * 4_000
