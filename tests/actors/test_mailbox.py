"""The mailbox: the system lane goes first, the user lane is bounded, nothing is lost."""

from __future__ import annotations

from greenroom.actors.mailbox import Mailbox


def test_system_messages_overtake_also_while_a_batch_is_taken() -> None:
    mailbox: Mailbox[str, str] = Mailbox(10, lambda: None)
    mailbox.put("call 1")
    mailbox.put("call 2")
    mailbox.put_system("stop")
    taken = mailbox.take(10)

    assert [next(taken), next(taken)] == ["stop", "call 1"]
    mailbox.put_system("kill")
    assert list(taken) == ["kill", "call 2"]


def test_the_user_lane_is_bounded_and_the_system_lane_is_not() -> None:
    rung: list[int] = []
    mailbox: Mailbox[int, int] = Mailbox(2, lambda: rung.append(len(mailbox)))

    assert [mailbox.put(n) for n in range(3)] == [True, True, False]
    for n in range(5):
        mailbox.put_system(n)

    assert rung == [1, 2, 3, 4, 5, 6, 7], "one ring for each that was put, none for the one refused"
    assert list(mailbox.take(99)) == [0, 1, 2, 3, 4, 0, 1]


def test_a_batch_is_no_larger_than_asked_for() -> None:
    mailbox: Mailbox[int, int] = Mailbox(9, lambda: None)
    for n in range(5):
        mailbox.put(n)

    assert list(mailbox.take(3)) == [0, 1, 2]
    assert len(mailbox) == 2
