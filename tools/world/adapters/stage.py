"""What every adapter is played through: the same calls and the same faults, by an agent of its framework.

Each framework has a script beside this, which runs in an environment of its own with this folder on its path. It gives
`play` a `Framework`: a function that runs an agent with a scripted model, which makes these calls, one a turn, and says
what the model was offered and told. The servers are real processes, but for one in this process, which has an image and
a tool that needs approval. The answer is one line of JSON on stdout: the problems, and how each fault was told.
"""

import asyncio
import base64
import importlib.util
import json
import logging
import os
import sys
import tempfile
import traceback
import warnings
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.types import ImageContent
from record import Run, Shown

from greenroom import Greenroom, Verdict
from greenroom.testing import assert_no_orphans
from greenroom.testing.assertions import of_run

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
# A picture of one pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FLOOD = 400_000  # bytes; a model is told an eighth of it
BOUND = 52_000
EXAMPLE_CALL = ("clock_now", {"utc_offset": 1})

# What is recorded and replayed: what changes from run to run, a picture, progress, what is large, a crash, a new start,
# a timeout, an error, a call that somebody allows, a
# server for each session.
TAPED = [
    ("w_echo", {"n": 4711}),
    ("f_pid", {}),
    ("desk_picture", {}),
    ("w_steps", {"count": 3}),
    ("f_echo", {"size": FLOOD}),
    ("f_crash", {}),
    ("f_pid", {}),
    ("f_sleep", {"seconds": 1.3}),
    ("w_refuse", {}),
    ("desk_wipe", {"path": "/taped"}),
    ("own_pid", {}),
    ("w_echo", {"n": 4711}),
]

# What a model is told of each fault, word for word.
DIES = (
    'Server "f" was lost: exited with code 1 (stderr: crashed as asked); the call was sent and may have run.'
)
HANGS = 'Server "f" did not answer within 1 s; the call was sent and may have run.'
REFUSES = "I would rather not"
FLOODS = "truncated"
REFUSED = 'Server "f" not available'
DOWN = 'Server "f" was drained'


@dataclass
class Framework:
    """A framework, and what it can do, where not all can. `ok` and so on: how it shows such a call to its model."""

    run: Any  # async (room, calls, *, answer=None, meta=None, on_progress=None) -> Run
    model: Any = None  # (calls, run) -> a scripted model, for its example
    example: Any = (
        None  # for one of another form: async (its module) -> what the model was told of EXAMPLE_CALL
    )
    ok: str = ""
    error: str = ""
    refused: str = ""  # a call that was not sent, and may work later; "": as an error
    denied: str = ""  # a call that was not allowed; "": as an error
    unknown: str = ""  # a call of a tool that there is not, about which no framework asks us; "": as an error
    flooded: str = ""  # a result that is too long; "": as any other
    flood_words: str = "truncated"
    list_follows: bool = True  # whether a changed list is seen in the next turn
    session_per_run: Any = None  # as `run`, if that opens a session of its own; None: it is given one
    images: bool = True
    extras: bool = True  # a program can send `_meta`, and hear progress
    bounded: bool = True  # a model is told no more than a bound
    more: tuple[Any, ...] = ()  # scenes of its own: async (stage, room)


def desk(log):
    """A server in this process."""
    server = MCPServer("desk")
    counted = []

    @server.tool()
    def count() -> str:
        """How often it was called."""
        counted.append(1)
        return str(len(counted))

    @server.tool()
    def picture():
        """A picture."""
        return Image(data=PNG, format="png")

    @server.tool()
    def smudge() -> ImageContent:
        """What should be a picture."""
        return ImageContent(type="image", data="no base64!", mime_type="image/png")

    @server.tool()
    def wipe(path: str) -> str:
        """Wipe it."""
        log.append(path)
        return f"wiped {path}"

    @server.tool()
    def meta(ctx: Context) -> str:
        """The `_meta` of this call."""
        said = ctx.request_context.meta
        return json.dumps(said if isinstance(said, dict) else said.model_dump(by_alias=True), default=str)

    return server


def example_module():
    """The example of the docs for this script's framework, and the servers that it opens."""
    clock = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}
    Path("mcp.json").write_text(json.dumps({"mcpServers": {"clock": clock}}), encoding="utf-8")
    name = Path(sys.argv[0]).stem.replace("play_", "with_", 1)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Stage:
    """A room, and what is played in it."""

    def __init__(self, framework, folder):
        self.framework = framework
        self.folder = folder
        self.problems = []
        self.told = {}  # of each fault: the words, and how they are shown
        self.wiped = []
        self.replayed = 0  # calls that a tape answered as they were answered when it was recorded

    def expect(self, true, what):
        if not true:
            self.problems.append(what[:400])

    @asynccontextmanager
    async def room(self, **options):
        faulty = ["-m", "greenroom.testing.servers.faulty"]
        whole = ["-m", "greenroom.testing.servers.whole", "--log", str(self.folder / "heard.log")]
        servers = {
            "w": {"command": sys.executable, "args": whole},
            "f": {"command": sys.executable, "args": faulty, "requestTimeoutMs": 1_000},
            "own": {"command": sys.executable, "args": faulty, "isolation": "per_session"},
        }
        # What has died twice stays away for longer than any agent needs for its next call.
        backoff = {"minMs": 20_000, "maxMs": 20_000}
        config = {"mcpServers": servers, "settings": {"approve": ["desk_wipe"], "restartBackoff": backoff}}
        desks = {"desk": desk(self.wiped)}
        async with Greenroom.open(config, cache_path=":memory:", in_process=desks, **options) as room:
            yield room
        assert_no_orphans(room)

    async def play(self):
        scenes = (self.plain, self.cancelled, self.approval, self.changes, self.fails, self.sessions)
        async with self.room() as room:
            for scene in scenes:
                await self.part(scene(room))
            for scene in self.framework.more:
                await self.part(scene(self, room))
        await self.part(self.taped())
        await self.part(self.example())
        left = asyncio.all_tasks() - {asyncio.current_task()}
        self.expect(not left, f"tasks left: {left}")

    async def part(self, scene):
        try:
            async with asyncio.timeout(240):
                await scene
        except Exception as error:
            traceback.print_exc()
            self.expect(False, f"{scene.__name__}: {type(error).__name__}: {error}")

    async def plain(self, room):
        """Lists, calls, structured results, images, `_meta`, the trace, progress."""
        heard = []
        calls = [("w_echo", {"n": 4711}), ("desk_picture", {}), ("desk_meta", {}), ("w_steps", {"count": 3})]
        run = await self.framework.run(
            room,
            calls,
            meta={"team": "blue", "traceparent": TRACE},
            on_progress=lambda tool, params: heard.append((tool, params["progress"])),
        )
        echo, picture, meta, steps = run.shown
        wanted = {"w_echo", "f_crash", "desk_picture", "desk_wipe", "own_pid"}
        self.expect(run.offered and wanted <= run.offered[0], f"offers {run.offered[:1]}")
        self.expect((echo.how, "4711" in echo.text) == (self.framework.ok, True), f"echo: {echo}")
        if run.structured:
            self.expect(run.structured[0] == {"n": 4711}, f"structured: {run.structured[0]}")
        self.expect(picture.images == 1 or not self.framework.images, f"picture: {picture}")
        self.expect(steps.text.strip('"') == "done", f"steps: {steps}")
        if not self.framework.extras:
            return
        self.expect('"team": "blue"' in meta.text.replace("\\", ""), f"meta: {meta}")
        self.expect(TRACE[3:35] in meta.text, f"the trace is lost: {meta}")
        self.expect(heard == [("w_steps", n) for n in (1, 2, 3)], f"progress: {heard}")

    async def cancelled(self, room):
        """The server hears that its caller does not wait any more."""
        log = self.folder / "heard.log"
        task = asyncio.create_task(self.framework.run(room, [("w_sleep", {"seconds": 50})]))
        async with asyncio.timeout(20):
            while not any(row.in_flight for row in room.status()):
                await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            while "notifications/cancelled" not in log.read_text():
                await asyncio.sleep(0.02)
        self.expect(all(row.in_flight == 0 for row in room.status()), "a cancelled call is still in flight")

    async def approval(self, room):
        """The framework interrupts, asks, and goes on, or does not."""
        for answer, path in ((True, "/yes"), (False, "/no")):
            run = await self.framework.run(room, [("desk_wipe", {"path": path})], answer=answer)
            self.expect(run.asked == ["desk_wipe"], f"asks about {run.asked}")
            told = run.shown[0]
            how = self.framework.ok if answer else self.framework.denied or self.framework.error
            self.expect(told.how == how, f"an answer of {answer}: {told}")
            self.expect(answer is ("wiped" in told.text), f"an answer of {answer}: {told}")
        self.expect(self.wiped == ["/yes"], f"wiped {self.wiped}")
        self.wiped.clear()
        self.told["must be allowed, and is not"] = ("by the framework", told.how)

    async def changes(self, room):
        """A tool that comes during a run."""
        before = {target.name for target in room.tools()}
        run = await self.framework.run(room, [("f_grow", {}), ("w_sleep", {"seconds": 1})])
        async with asyncio.timeout(10):
            while not (new := {target.name for target in room.tools()} - before):
                await asyncio.sleep(0.02)
        again = await self.framework.run(room, [("f_echo", {})])
        self.expect(new <= again.offered[0], f"does not offer {new} in the next run")
        follows = new <= run.offered[-1]
        self.expect(follows is self.framework.list_follows, f"offers {new} in the next turn: {follows}")
        self.told["a new tool in the list of a server"] = (
            "is offered",
            "in the next turn" if follows else "in the next run",
        )

    async def fails(self, room):
        """What goes wrong is told, the run goes on, and only what was not sent may be asked to be tried again."""
        is_error, framework = self.framework.error, self.framework
        unknown = framework.unknown or is_error
        crash = ("f_crash", {})
        rows = [
            ("its server dies", [crash], is_error, DIES),
            ("its server hangs", [("f_sleep", {"seconds": 1.3})], is_error, HANGS),
            ("its server answers with a JSON-RPC error", [("w_refuse", {})], is_error, REFUSES),
            ("its server floods", [("f_echo", {"size": FLOOD})], framework.flooded or framework.ok, FLOODS),
            (
                "its server died again and again",
                [crash, crash, crash, ("f_pid", {})],
                framework.refused or is_error,
                REFUSED,
            ),
            ("its server was taken down", [("f_pid", {})], is_error, DOWN),
            ("there is no such tool", [("f_nothing", {})], unknown, ""),
        ]
        for what, calls, how, words in rows:
            if words is DOWN:
                await room.drain("f")
            run = await self.run_whatever_happens(room, [*calls, ("w_echo", {"n": 1})])
            told, after = run.shown[min(len(calls), len(run.shown)) - 1], run.shown[-1]
            self.expect(told.how == how, f"{what}: {told.how}, not {how}: {told.text[:200]}")
            needs = words if words is not FLOODS else framework.flood_words if framework.bounded else ""
            self.expect(needs in told.text, f"{what}: {told.text[:200]} … {told.text[-200:]}")
            size = len(told.text)
            self.expect(size <= BOUND or not framework.bounded, f"{what}: {size} characters")
            self.expect(after.how in (framework.ok, unknown), f"after {what}: {after}")
            how_told = f"{told.how}, all of it" if size > BOUND else told.how
            self.told[what] = (words or "by the framework", how_told)
        await room.connect("f")

    async def run_whatever_happens(self, room, calls):
        try:
            return await self.framework.run(room, calls)
        except Exception as error:
            return Run([Shown(f"the run ends with `{type(error).__name__}`", str(error))])

    async def sessions(self, room):
        """Each run has a session: its calls find the same process, another run's another, and both end with it."""
        pids = []
        calls = [("own_pid", {}), ("own_pid", {})]
        for number in range(2):
            if self.framework.session_per_run is not None:
                run = await self.framework.session_per_run(room, calls)
            else:
                async with room.session(f"run-{number}") as session:
                    run = await self.framework.run(session, calls)
            first, second = (shown.text.strip('"') for shown in run.shown)
            self.expect(first == second and first.isdigit(), f"one run, two processes: {first}, {second}")
            pids.append(first)
        self.expect(pids[0] != pids[1], "two runs have one process")
        if (run := self.framework.session_per_run) is not None:
            both = await asyncio.gather(run(room, calls), run(room, calls))
            self.expect(len({each.shown[0].text for each in both}) == 2, "two runs at once have one process")
        own = [row for row in room.status() if row.server == "own" and row.scope != "shared"]
        self.expect(not own, f"left of the sessions: {own}")

    async def taped(self):
        """A tape that was recorded through the framework replays under it unchanged, and starts no process."""
        tape, steps = self.folder / "run.tape", ([], [])
        async with self.room(record=tape) as room:
            first = await self.taped_run(room, steps[0])
            self.expect(of_run(room.run_id), "no process was seen while the tape was recorded")
        self.expect(len(first.shown) == len(TAPED), f"recorded {len(first.shown)} of {len(TAPED)} calls")
        async with Greenroom.replay(tape) as room:
            second = await self.taped_run(room, steps[1])
            self.expect(not of_run(room.run_id), f"processes of a replay: {of_run(room.run_id)}")
            self.expect(not room.tape.refusals, f"not on the tape: {room.tape.refusals}")
            self.expect(not room.tape.untaken, f"not taken from the tape: {room.tape.untaken}")
        assert_no_orphans(room)
        self.expect(self.wiped.count("/taped") == 1, f"the replay has wiped, too: {self.wiped}")
        for name in ("shown", "structured", "offered", "defined", "asked", "said"):
            was, now = (getattr(run, name) for run in (first, second))
            self.expect(was == now, f"{name} differ in the replay: {was} {now}")
        self.expect(steps[0] == steps[1], f"progress differs in the replay: {steps}")
        self.replayed = sum(was == now for was, now in zip(first.shown, second.shown, strict=False))

    async def taped_run(self, room, steps):
        await room.catalogued()
        return await self.framework.run(
            room,
            TAPED,
            answer=True,
            on_progress=lambda tool, params: steps.append((tool, params["progress"])),
        )

    async def example(self):
        """The example in the docs, as it is written there."""
        module = example_module()
        if self.framework.example is not None:
            told = await self.framework.example(module)
        else:
            run = Run()
            await module.answer("What time is it?", self.framework.model([EXAMPLE_CALL], run))
            told = run.shown[0].text
        self.expect("+01:00" in told, f"the example: {told}")


async def smudge(stage, room):
    """An image that cannot be read, for adapters that tell of it: a scene for `more`."""
    [told] = (await stage.framework.run(room, [("desk_smudge", {})])).shown
    said = "An image that cannot be read" in told.text
    stage.expect((told.how, told.images, said) == (stage.framework.ok, 0, True), f"smudge: {told}")


def in_session(play_all):
    """`run` of a framework whose callbacks belong to a session, from `async (session, calls, run)`."""

    async def run(room, calls, *, answer=None, **_others):
        record = Run()

        async def asked(request):
            record.asked.append(request.tool)
            return Verdict.ONCE if answer else Verdict.DENY

        if isinstance(room, Greenroom):
            async with room.session(f"run of {id(record)}", on_approval=asked) as session:
                await play_all(session, calls, record)
        else:
            await play_all(room, calls, record)
        return record

    return run


def play(framework, scenes=Stage.play):
    """Play everything, or what `scenes(stage)` plays, and print what came of it."""
    warnings.simplefilter("error", ResourceWarning)
    logging.disable(logging.ERROR)  # frameworks log what we plant
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        os.chdir(folder)
        stage = Stage(framework, Path(folder))
        asyncio.run(scenes(stage))
        os.chdir("/")
    said = {"problems": stage.problems[:10], "told": stage.told, "replayed": stage.replayed}
    print("\n" + json.dumps(said), flush=True)
