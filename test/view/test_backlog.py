"""Between receiving and drawing: words wait in order, pictures make way, losses are counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.view.live_messages import Backlog

PICTURES = ("camera/image_raw/compressed", "camera/image_raw")
TOPICS = st.lists(st.sampled_from(["words", "verdict", *PICTURES]), max_size=40)


@given(TOPICS, st.integers(1, 10))
def test_words_wait_in_order_and_of_pictures_the_newest(said: list[str], size: int) -> None:
    backlog = Backlog(size)
    for number, topic in enumerate(said):
        backlog.put(float(number), topic, number)
    taken = backlog.take()
    assert taken == sorted(taken) and all(said[number] == topic for _, topic, number in taken)
    assert len(said) == backlog.received
    for picture in PICTURES:
        of_it = [number for number, topic in enumerate(said) if topic == picture]
        assert [number for _, topic, number in taken if topic == picture] == of_it[-1:]
    small = [number for number, topic in enumerate(said) if topic in ("words", "verdict")]
    first = [number for _, topic, number in taken if topic in ("words", "verdict")]
    assert first == small[: len(first)] and len(small) - len(first) == backlog.missed
    assert not backlog.missed or len(taken) >= size
    assert not backlog.take()


def test_who_takes_in_time_misses_nothing() -> None:
    backlog = Backlog(2)
    for number in range(100):
        backlog.put(float(number), "words", number)
        if number % 2:
            assert [message for _, _, message in backlog.take()] == [number - 1, number]
    assert (backlog.received, backlog.missed) == (100, 0)
