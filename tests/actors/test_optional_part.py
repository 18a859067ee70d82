"""What no call needs may fail alone: it is said once and tried again, ever more rarely (`actors.workers.Part`)."""

from __future__ import annotations

from itertools import pairwise

import anyio
import anyio.lowlevel
from tests.support import in_virtual_time

from greenroom.actors.workers import OptionalPart, in_words
from greenroom.protocol.errors import UsageError


@in_virtual_time
async def test_a_part_that_fails_is_said_once_and_tried_again_ever_more_rarely() -> None:
    told: list[str] = []
    tries: list[float] = []
    part = OptionalPart("it", told.append, "Nobody minds.")

    async def work() -> None:
        tries.append(anyio.current_time())
        if len(tries) == 9:
            part.works()
            return
        raise OSError(28, "No space left on device", "/x")

    await part.keep(work)
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert told == [
        "it: No space left on device (/x). Nobody minds. It is tried again.",
        "it: works again",
    ]


@in_virtual_time
async def test_a_part_has_worked_since_it_first_said_so_and_for_longer_than_the_longest_pause() -> None:
    told: list[str] = []
    part = OptionalPart("it", told.append)
    part.works()
    assert (part.is_due, told) == (True, [])
    await anyio.sleep(100)
    assert [part.failed("a"), part.failed("a")] == [1, 2]
    assert (part.next_try, part.is_due) == (102, False)
    await anyio.sleep(2)
    assert part.is_due
    part.works()
    await anyio.sleep(40)
    part.works()  # is no new beginning of its good time
    await anyio.sleep(20)
    assert part.failed("a") == 4, "sixty seconds are not longer than sixty"
    part.works()
    await anyio.sleep(40)
    part.works()
    await anyio.sleep(21)
    assert [part.failed("a"), part.failed("a")] == [1, 2], "one good time is one new beginning"
    await anyio.sleep(61)
    assert part.failed("a") == 4, "silence is not work"
    assert told == ["it: a. It is tried again.", "it: works again"] * 2 + ["it: a. It is tried again."]
    assert part.failed("b") == 8
    assert part.failed(OSError(28, "No space", "/x")) == 16
    assert part.failed(OSError(28, "No space", "/y")) == 32
    assert told[5:] == ["it: b. It is tried again.", "it: No space (/x). It is tried again."]


@in_virtual_time
async def test_a_part_that_fails_in_the_step_in_which_it_is_ended_just_ends() -> None:
    lines: list[str] = []

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            await anyio.lowlevel.checkpoint()
            ending.cancel_scope.cancel()
            raise UsageError("it answered what cannot be read")

    async with anyio.create_task_group() as ending:
        ending.start_soon(OptionalPart("a part", lines.append).keep, work)
    assert not any("bug" in line for line in lines), (
        "it ends without an error, and may say what it failed with"
    )


def test_the_reason_is_one_line_and_says_whose_it_is() -> None:
    assert in_words(UsageError("do\nthis.")) == "do this"
    assert in_words(OSError(24, "Too many open files")) == "Too many open files"
    assert in_words(ExceptionGroup("", [ZeroDivisionError("oh")])).endswith(
        "report it: ZeroDivisionError: oh"
    )
    assert in_words(OSError("odd")) == "odd"
    assert in_words(OSError(2, "No such file", "/x")) == "No such file (/x)"
    assert in_words(" a\n text. ") == "a text"
    unwritable = UnicodeEncodeError("ascii", "secret-token\udcff", 12, 13, "ordinal not in range")
    assert "UnicodeEncodeError" in in_words(unwritable)
    assert "secret-token" not in in_words(unwritable), "nothing of what it was about"
