"""A running gateway notices a changed configuration, wherever it stands and however it comes to be."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.config.test_config_keys import SETTINGS
from tests.support import in_real_time, in_virtual_time
from tests.support.descriptors import hears_of_files, no_more_descriptors
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import started
from tests.support.patience import PATIENCE, until

from greenroom import Greenroom
from greenroom.actors.workers import OptionalPart
from greenroom.config import file_watcher as bell
from greenroom.config.model import Config
from greenroom.config.parse import parse_config
from greenroom.gateway import config_watch as watch
from greenroom.gateway.event_log import EventLog
from greenroom.protocol.errors import ConfigError, Problem, UsageError

RELOADED = "configuration reloaded"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a path short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="gr-") as folder:
        yield Path(folder)


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(folder / "home"),
        "XDG_CACHE_HOME": os.fspath(folder / "cache"),
    }


@contextmanager
def serving(folder: Path, *options: str) -> Generator[Callable[[], list[str]]]:
    """A gateway in `folder/work`; what it has said about its configuration so far."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (folder / "home").mkdir(exist_ok=True)
    log = folder / "stderr.txt"

    def said() -> list[str]:
        return [line for line in log.read_text().splitlines() if "configuration" in line]

    with (
        log.open("wb") as stderr,
        started(
            *(*GREENROOM, "serve", *options),
            env=environment(folder),
            cwd=work,
            stderr=stderr,
        ) as gateway,
    ):
        gateway.initialize()
        until(
            lambda: hears_of_files(gateway.process.pid),
            "the watch, which begins a moment after it has begun to serve",
        )
        yield said
        assert gateway.end() == 0


def put(file: Path, text: str) -> None:
    """Write it as programs do that care: nobody can read half of it."""
    new = file.with_name("being-written")
    new.write_text(text)
    new.rename(file)


def config_of(*servers: str) -> str:
    entries = {name: {"command": name, "bootstrap": False} for name in servers}
    return json.dumps({"mcpServers": entries})


def test_a_gateway_says_a_problem_of_its_configuration_once(short: Path) -> None:
    file = short / "home/.config/mcp/mcp.json"
    file.parent.mkdir(parents=True)
    put(file, json.dumps({**json.loads(config_of("a")), "setings": {}}))
    with serving(short):
        pass
    lines = (short / "stderr.txt").read_text().splitlines()
    assert len([line for line in lines if "setings" in line]) == 1, "and Python's logging does not add to it"


def status(folder: Path) -> dict[str, Any]:
    done = run_forked(
        [*GREENROOM, "status", "--json"],
        env=environment(folder),
        cwd=folder / "work",
        check=True,
    )
    return json.loads(done.stdout)


def trust(folder: Path, *options: str) -> None:
    """The owner's yes to the project in `folder/work`."""
    run_forked(
        [*GREENROOM, "trust", "--yes", *options], env=environment(folder), cwd=folder / "work", check=True
    )


@pytest.mark.parametrize("place", ["work/.mcp.json", "work/.greenroom/mcp.json", "home/.config/mcp/mcp.json"])
def test_a_file_that_comes_to_be_later_is_read_and_commands_still_find_the_gateway(
    short: Path, place: str
) -> None:
    with serving(short) as said:
        assert status(short)["source"] == "gateway"
        file = short / place
        file.parent.mkdir(parents=True, exist_ok=True)
        put(file, config_of("a"))
        if place.startswith("work"):  # a project's file: it is seen at once, and used when its owner agrees
            assert until(lambda: any("greenroom trust" in line for line in said()))
            assert [server["untrusted"] for server in status(short)["servers"]] == [True]
            trust(short)
        assert until(lambda: any("start 1" in line for line in said()))
        found = status(short)
        assert (found["source"], [server["name"] for server in found["servers"]]) == ("gateway", ["a"])
        assert said()[-1] == f"greenroom: room: {RELOADED}: start 1"
    assert list((short / "cache" / "greenroom" / "run").iterdir()) == []


def test_a_folder_that_is_swapped_by_a_link_is_another_configuration(tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap: the file is a link through `..data`, which is replaced."""
    mounted = tmp_path / "config"
    for number, servers in enumerate((["a"], ["a", "b"], ["c"])):
        (mounted / f"..{number}").mkdir(parents=True)
        (mounted / f"..{number}" / "mcp.json").write_text(config_of(*servers))
    (mounted / "..data").symlink_to("..0")
    (mounted / "mcp.json").symlink_to("..data/mcp.json")
    with serving(tmp_path, "--config", os.fspath(mounted / "mcp.json")) as said:
        for number in (1, 2):
            (mounted / "..data_tmp").symlink_to(f"..{number}")
            (mounted / "..data_tmp").rename(mounted / "..data")
            assert until(lambda wanted=number: len(said()) == wanted)
        assert [line.partition("reloaded: ")[2] for line in said()] == ["keep 1, start 1", "drain 2, start 1"]


def test_each_change_is_one_line_and_no_change_is_none(tmp_path: Path) -> None:
    file = tmp_path / "home" / ".config" / "greenroom" / "mcp.json"
    file.parent.mkdir(parents=True)
    file.write_text(config_of("a"))
    with serving(tmp_path) as said:
        put(file, '{"mcpServers": {"a": {"command": "a", "bootstrap": false, "bogus": 1}}}')
        assert until(lambda: len(said()) == 1)
        assert "Problems: " in said()[0]
        assert "bogus" in said()[0]
        os.utime(file)  # touched
        put(file, file.read_text())
        put(file, '{"mcpServers": {"a": {"command": "a", "bootstrap": false, "bogus": 1, "bogie": 2}}}')
        assert until(lambda: len(said()) == 2)
        assert "bogie" in said()[1]
        assert "bogus" not in said()[1]
        put(file, "{")
        assert until(lambda: len(said()) == 3)
        os.utime(file, (1, 1))
        assert "the old one stays: " in said()[2]
        assert "is skipped" not in said()[2]
        put(file, '{"mcpServers": {"a": {"command": "a", "bootstrap": false, "bogus": 1, "bogie": 2}}}')
        assert until(lambda: len(said()) == 4)
        assert "can be read again" in said()[3]


def test_the_servers_of_a_file_that_is_being_written_stay(short: Path) -> None:
    own = short / "home" / ".config" / "greenroom" / "mcp.json"
    other = short / "home" / ".cursor" / "mcp.json"
    for file in (own, other):
        file.parent.mkdir(parents=True)
    own.write_text('{"imports": ["cursor"], "mcpServers": {"a": {"command": "a", "bootstrap": false}}}')
    other.write_text(config_of("b"))
    with serving(short) as said:
        for number, content in enumerate(("", config_of("b", "c")[:30], "null"), 1):
            other.write_text(content)
            assert until(lambda number=number: len(said()) == number)
            found = status(short)
            assert [server["name"] for server in found["servers"]] == ["b", "a"]
            assert os.fspath(other) in found["notReloaded"]
        shown = run_forked(
            [*GREENROOM, "status"], env=environment(short), cwd=short / "work", check=True
        ).stdout
        assert f"The changed configuration is not used, the old one stays: {other}" in shown.decode()
        assert not any("reloaded:" in line for line in said())
        other.write_text(config_of("b", "c"))
        assert until(lambda: any("reloaded: keep 2, start 1" in line for line in said()))
        assert "notReloaded" not in status(short)
        other.unlink()
        assert until(lambda: any("reloaded: keep 1, drain 2" in line for line in said()))


def test_a_named_file_that_breaks_is_said_and_the_old_one_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(config_of("a"))
    with serving(tmp_path, "--config", os.fspath(file)) as said:
        put(file, "{")
        assert until(lambda: len(said()) == 1)
        assert "is not used, the old one stays" in said()[0]
        put(file, config_of("a", "b"))
        assert until(lambda: len(said()) == 2)
        assert "keep 1, start 1" in said()[1]


def test_what_an_imported_program_configures_later_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}, "imports": ["cursor"]}')
    with serving(tmp_path, "--config", os.fspath(file)) as said:
        (tmp_path / "work" / ".cursor").mkdir()
        put(tmp_path / "work" / ".cursor" / "mcp.json", config_of("a"))
        assert until(lambda: any("greenroom trust --config" in line for line in said()))
        trust(tmp_path, "--config", os.fspath(file))
        assert until(lambda: any("start 1" in line for line in said()))


def test_yaml_and_an_env_file_that_comes_to_be_later_are_followed(tmp_path: Path) -> None:
    file = tmp_path / "mcp.yaml"
    text = "mcpServers:\n  a: {command: a, bootstrap: false, envFile: of/a.env}\n"
    file.write_text(text)
    with serving(tmp_path, "--config", os.fspath(file)) as said:
        (tmp_path / "of").mkdir()
        put(tmp_path / "of" / "a.env", "A=1")
        assert until(lambda: any("drain 1, start 1" in line for line in said()))
        put(file, text + "  b: {command: b, bootstrap: false}\n")
        assert until(lambda: any("keep 1, start 1" in line for line in said()))


def test_what_changes_in_a_trusted_project_is_not_obeyed_before_another_yes(short: Path) -> None:
    own = short / "home" / ".config" / "greenroom" / "mcp.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"imports": ["pi"]}')
    file = short / "work" / ".pi" / "mcp.json"
    file.parent.mkdir(parents=True)
    file.write_text(config_of("a"))
    trust(short)
    with serving(short) as said:
        assert [server["name"] for server in status(short)["servers"]] == ["a"]
        put(file, config_of("a", "evil"))
        assert until(lambda: any("drain 1" in line for line in said()))
        assert [server["untrusted"] for server in status(short)["servers"]] == [True, True]
        trust(short)
        assert until(lambda: any("start 2" in line for line in said()))


def test_the_way_to_a_file_leads_through_links_and_ends_where_something_is_missing(tmp_path: Path) -> None:
    real = tmp_path.resolve()
    (real / "a" / "b").mkdir(parents=True)
    (real / "link").symlink_to("a/../a")
    (real / "a" / "deep").symlink_to(real / "a" / "b")
    (real / "a" / "beside").symlink_to("b/c/d")
    (real / "loop").symlink_to("loop")

    def below(path: Path) -> list[tuple[str, str]]:
        steps = [(os.path.relpath(folder, real), name) for folder, name in bell.way_to(path)]
        return [step for step in steps if not step[0].startswith("..")]

    assert below(real / "link" / "b" / "no" / "file") == [
        (".", "link"),
        (".", "a"),
        (".", "a"),
        ("a", "b"),
        ("a/b", "no"),
    ]
    assert below(real / "a" / "deep" / "x") == [
        *[(".", "a"), ("a", "deep"), (".", "a"), ("a", "b"), ("a/b", "x")],
    ]
    assert below(real / "a" / "beside") == [(".", "a"), ("a", "beside"), ("a", "b"), ("a/b", "c")]
    assert below(real / "nothing" / "there") == [(".", "nothing")]
    assert set(below(real / "loop" / "x")) == {(".", "loop")}


@in_real_time
async def test_it_rings_for_names_on_the_way_and_for_no_others(tmp_path: Path) -> None:
    file = tmp_path / "here" / "file"
    file.parent.mkdir()

    async def rings(path: Path, happen: Callable[[], object], within: float = PATIENCE) -> bool:
        with bell.hung_at([path], OptionalPart("it", print)) as hung:
            happen()
            with anyio.move_on_after(within):
                await hung.rung()
                return True
        return False

    assert not await rings(file, lambda: None, 0.1)
    assert await rings(file, file.touch)
    assert await rings(file, lambda: file.write_text("x"))
    assert await rings(file, lambda: file.chmod(0o600))
    assert not await rings(file, file.read_text, 0.1)
    assert not await rings(file, (tmp_path / "here" / "other").touch, 0.1)
    assert not await rings(file, (tmp_path / "beside").touch, 0.1)
    assert await rings(file, lambda: (tmp_path / "here").rename(tmp_path / "there"))
    assert await rings(file, lambda: (tmp_path / "there").rename(tmp_path / "here"))
    assert await rings(file, file.unlink)


class Told:
    """The kernel's half of a bell, as a test has it: what it is asked to watch, and what it answers."""

    def __init__(self, refuse: OSError | None = None) -> None:
        self.refuse = refuse
        self.watched: list[str] = []
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def add_watch(self, path: str, _mask: int) -> int:
        self.watched.append(path)
        if self.refuse is not None:
            raise self.refuse
        return len(self.watched)


@pytest.mark.parametrize(
    ("refusal", "rings"),
    [
        (FileNotFoundError(2, "gone"), "at once"),  # it went while we looked
        (NotADirectoryError(20, "another"), "at once"),
        (PermissionError(13, "no"), "never"),
        (OSError(28, "no more watches"), "by the clock"),
    ],
)
@in_virtual_time
async def test_what_cannot_be_watched_rings_at_once_never_or_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: OSError, rings: str
) -> None:
    library, never = Told(refusal), anyio.Event()
    monkeypatch.setattr(bell, "Inotify", lambda: library)
    monkeypatch.setattr(bell.anyio, "wait_readable", lambda _kernel: never.wait())
    heard: list[str] = []
    with bell.hung_at([tmp_path / "x"], OptionalPart("it", heard.append)) as hung:
        began = anyio.current_time()
        with anyio.move_on_after(60):
            await hung.rung()
        took = {"at once": 0.0, "never": 60.0, "by the clock": bell.LOOK_AGAIN}[rings]
        assert anyio.current_time() - began == took
    assert library.closed
    assert bool(heard) == (rings == "by the clock")


_AnyRoom: Any = object  # for type checkers


class Reloading(_AnyRoom):
    """A room that is only reloaded. `refuse`: with this."""

    def __init__(self, config: Config, refuse: Exception | None = None) -> None:
        self.config = config
        self.refuse = refuse
        self.reloads = 0

    async def reload(self, config: Config) -> None:
        self.reloads += 1
        if self.refuse is not None:
            raise self.refuse
        self.config = config


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


@in_real_time
async def test_a_configuration_is_reloaded_when_it_is_another_and_kept_when_it_is_refused() -> None:
    old, new = Config(files=("old",)), Config(files=("new",))

    def broken() -> Config:
        raise ConfigError([Problem("mcp.json", "is not JSON"), Problem("other", "neither")])

    said: Any = Said()
    room, state = Reloading(old), watch.ReloadState()
    assert not await watch.reload(room, lambda: Config(files=("old",)), said, state)
    for _ in range(2):
        assert not await watch.reload(room, broken, said, state)
        assert (room.reloads, room.config) == (0, old)
        assert state.refused == "mcp.json: is not JSON; other: neither"
    refused = Reloading(old, UsageError("The room is closing."))
    assert not await watch.reload(refused, lambda: new, said, state)
    assert await watch.reload(room, lambda: new, said, state)
    assert (room.reloads, room.config, state.refused) == (1, new, "")
    what = "the changed configuration is not used, the old one stays: "
    assert said.lines == [
        f"{what}mcp.json: is not JSON; other: neither",
        f"{what}The room is closing.",
    ]


@in_real_time
async def test_a_file_in_use_that_cannot_be_read_now_changes_nothing_and_is_said_once() -> None:
    old = Config(files=("a", "b", "c"), unread=("c",))
    wrong = Problem("b", "is empty; it is skipped", fatal=False)
    half = Config(files=("a", "b", "c", "d"), unread=("b", "c"), problems=(wrong,))
    said: Any = Said()
    room, state = Reloading(old), watch.ReloadState()
    for _ in range(3):
        assert not await watch.reload(room, lambda: half, said, state)
    assert (room.config, state.refused) == (old, "b: is empty")
    assert not await watch.reload(room, lambda: old, said, state)
    assert state.refused == ""
    assert said.lines == [
        "the changed configuration is not used, the old one stays: b: is empty",
        "the configuration can be read again, and is the one in use",
    ]
    new = Config(files=("a", "b", "c", "d"), unread=("c", "d"))
    assert await watch.reload(room, lambda: new, said, state), "neither of these was in use"
    assert room.config == new


class Watches:
    """The watches of a gateway, which ring when a test says so: when each was begun, and over which places."""

    def __init__(self) -> None:
        self.begun: list[tuple[float, list[str]]] = []
        self._rings: dict[int, anyio.Event] = {}

    def ring(self, number: int) -> anyio.Event:
        return self._rings.setdefault(number, anyio.Event())

    @contextmanager
    def hung_at(self, places: list[Path], _part: object) -> Generator[Watches]:
        self.begun.append((round(anyio.current_time(), 3), [str(place) for place in places]))
        yield self

    async def rung(self) -> None:
        await self.ring(len(self.begun)).wait()


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> Watches:
    async def here(work: Callable[[], Any]) -> Any:
        return work()

    found = Watches()
    monkeypatch.setattr(watch, "hung_at", found.hung_at)
    monkeypatch.setattr(watch, "apart", here)
    return found


@in_virtual_time
async def test_after_a_reload_the_new_places_are_watched_and_several_changes_are_one(
    watches: Watches, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(9))
    stamp = lambda _places: {Path("x"): next(looks) if len(watches.begun) != 3 else 1}  # noqa: E731
    monkeypatch.setattr(watch, "look", stamp)
    room, reread, reloads = Reloading(Config(places=("/old",))), list[None](), list[float]()

    def read() -> Config:
        reread.append(None)
        return Config(places=("/new",), files=("new",))

    async def reloaded() -> None:
        reloads.append(round(anyio.current_time(), 3))

    said: Any = Said()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.watch_configuration, room, read, said, reloaded)
        await anyio.sleep(5.0)
        assert watches.begun == [(0.3, ["/old"]), (0.6, ["/new"])]
        assert (reloads, len(reread)) == ([0.3], 2)
        watches.ring(2).set()
        await anyio.sleep(1.0)
        assert [at for at, _ in watches.begun] == [0.3, 0.6, 5.3]
        assert len(reread) == 2, "nothing has changed at any place"
        tasks.cancel_scope.cancel()


@in_virtual_time
async def test_what_is_accepted_counts_once_and_at_once_and_its_file_is_watched(
    watches: Watches, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins, other = Path("/pins"), Path("/place")
    stamps = {pins: 0, other: 0}
    monkeypatch.setattr(watch, "look", lambda places: {place: stamps[place] for place in places})

    class Accepting(Reloading):
        accepted = 0

        async def accept(self) -> None:
            self.accepted += 1

    said: Any = Said()
    config = Config(places=(str(other),))
    room, accepted = Accepting(config), list[int]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: watch.watch_configuration(room, lambda: config, said, pins=[pins]))
        for place in (None, pins, None, other, pins):
            if place is not None:
                stamps[place] += 1
            watches.ring(len(watches.begun)).set()
            await anyio.sleep(1.0)
            accepted.append(room.accepted)
        tasks.cancel_scope.cancel()
    assert accepted == [0, 1, 1, 1, 2]
    assert watches.begun[0][1] == ["/place", "/pins"]
    assert room.reloads == 0


def test_each_part_of_a_stamp_tells_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    same = dict.fromkeys(fields, 7)
    found: dict[str, Any] = {"stat": same}

    class Disk:
        """What the module asks of `os`."""

        def stat(self, _place: Path) -> os.stat_result:
            said = found["stat"]
            if isinstance(said, OSError):
                raise said
            counted = (0, said["st_ino"], said["st_dev"], 1, 0, 0, said["st_size"], 0, 0, 0)
            return os.stat_result(counted, {name: said[name] for name in fields[3:]})

    monkeypatch.setattr(watch, "os", Disk())
    here = [Path("x")]
    before = watch.look(here)
    assert watch.look(here) == before
    stamps = [before]
    for field in fields:
        found["stat"] = {**same, field: 8}
        stamps.append(watch.look(here))
    for number in (errno.ENOENT, errno.EACCES):
        found["stat"] = OSError(number, "no")
        stamps.append(watch.look(here))
        assert watch.look(here) == stamps[-1]
    assert all(one != two for place, one in enumerate(stamps) for two in stamps[:place])


@in_real_time
async def test_a_setting_that_a_gateway_reads_once_is_said_when_it_changes() -> None:
    """All others are asked for where they count, in the configuration of the room."""
    reading, writing = os.pipe()
    log = EventLog(writing)
    try:
        async with Greenroom.open({}) as room:
            for name, said, attribute, _ in SETTINGS:
                inner: Any = said
                for part in reversed(name.split(".")):
                    inner = {part: inner}
                settings = {"maxConnections": 98, **inner} if name == "minConnections" else inner
                changed = parse_config({"settings": settings})
                assert await watch.reload(room, lambda changed=changed: changed, log, watch.ReloadState())
                assert getattr(room.config.settings, attribute) == getattr(changed.settings, attribute)
                assert await watch.reload(room, lambda: parse_config({}), log, watch.ReloadState())
        told = os.read(reading, 1 << 16).decode().splitlines()
    finally:
        os.close(reading)
        os.close(writing)
    words = "not followed by this gateway, only by one that is started again"
    assert sorted(told) == sorted(f"greenroom: {words}: {name}" for name in watch.READ_ONCE for _ in "ab")


@in_real_time
async def test_t39_without_inotify_instances_it_looks_by_the_clock_says_so_once_and_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell, "LOOK_AGAIN", 0.0)
    told: list[str] = []
    part = OptionalPart("hearing", told.append)
    with no_more_descriptors():
        for _ in range(2):
            with bell.hung_at([tmp_path / "x"], part) as hung, anyio.fail_after(PATIENCE):
                await hung.rung()
    with bell.hung_at([tmp_path / "x"], part) as hung, anyio.fail_after(PATIENCE):
        (tmp_path / "x").touch()
        await hung.rung()
    assert len(told) == 2, told
    problem, again = told
    assert problem.startswith("hearing: Too many open files")
    assert again == "hearing: works again"


@in_virtual_time
async def test_commands_that_ask_for_a_reload_share_one_and_are_answered_when_the_gateway_ends() -> None:
    state, answers, began = watch.ReloadState(), list[str](), list[float]()
    is_held = anyio.Event()

    async def reloading() -> None:
        began.append(anyio.current_time())
        await (is_held.wait() if len(began) == 3 else anyio.sleep(1))
        if len(began) == 2:
            raise ValueError("a bug")

    async def ask() -> None:
        try:
            answers.append((await method({}))["notReloaded"])
        except ValueError as error:
            answers.append(str(error))

    async with anyio.create_task_group() as commands:
        async with anyio.create_task_group() as gateway:
            method = watch.reload_now(gateway, reloading, state)
            commands.start_soon(ask)
            await anyio.sleep(0.5)
            for _ in range(300):
                commands.start_soon(ask)
            await anyio.sleep(9)
            assert began == [0, 1], "who comes while it is read has it read again, and only once"
            assert answers == ["", *["a bug"] * 300]
            for _ in range(2):
                commands.start_soon(ask)
                await anyio.sleep(1)
            gateway.cancel_scope.cancel()
        await ask()
    assert answers[301:] == ["it is ending"] * 3
