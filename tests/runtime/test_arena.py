"""The arena: buffers that live together never overlap, and the others share bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onepass.runtime.arena import PAGE, PAGED_FROM, Lifetime, alignment_of, plan_arena


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    sizes, times = st.integers(0, 5000) | st.integers(0, 100_000), st.integers(0, 12)
    spans = draw(st.lists(st.tuples(sizes, times, times), max_size=16))
    return [Lifetime(f"t{i}", size, min(a, b), max(a, b)) for i, (size, a, b) in enumerate(spans)]


@given(lifetimes())
def test_buffers_that_live_together_never_overlap(lives: list[Lifetime]) -> None:
    plan = plan_arena(lives)
    assert set(plan.offsets) == {life.name for life in lives}
    for i, a in enumerate(lives):
        start = plan.offsets[a.name]
        assert start % alignment_of(a.size_bytes) == 0
        assert start >= 0 and start + a.size_bytes <= plan.size_bytes
        for b in lives[i + 1 :]:
            if a.first <= b.last and b.first <= a.last and a.size_bytes and b.size_bytes:
                other = plan.offsets[b.name]
                assert start + a.size_bytes <= other or other + b.size_bytes <= start


def test_a_chain_needs_two_buffers() -> None:
    plan = plan_arena([Lifetime(f"t{i}", 1000, i, i + 1) for i in range(50)])
    assert plan.size_bytes == 2 * 1024


def test_large_buffers_start_on_a_page() -> None:
    lives = [Lifetime("a", 100, 0, 2), Lifetime("b", PAGED_FROM + 64, 0, 2), Lifetime("c", PAGED_FROM, 0, 2)]
    plan = plan_arena(lives)
    assert plan.offsets["b"] % PAGE == plan.offsets["c"] % PAGE == 0
    assert plan.size_bytes == 2 * PAGED_FROM + PAGE + 128


def test_a_residual_keeps_its_place() -> None:
    plan = plan_arena([Lifetime("skip", 640, 0, 3), Lifetime("a", 640, 1, 2), Lifetime("b", 640, 2, 3)])
    assert len(set(plan.offsets.values())) == 3


def test_nothing_to_place() -> None:
    plan = plan_arena([])
    assert (plan.size_bytes, dict(plan.offsets)) == (0, {})
