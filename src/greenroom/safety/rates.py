"""Calls that come too often: limits of rates, and the guard against loops.

Both are one gate. It refuses at once and holds nothing, so a call that is over a limit was never accepted: it is
counted as refused, and no byte of it was sent. Its texts are read in `config.rate_texts`.

* *Limits* (`limits` of a server's entry, of a profile, of the settings). Every limit that fits a call must have a
  token for it, and only then each gives one. A limit is a time, and not a number that has to be filled again: the one
  at which its bucket is full (the generic cell rate algorithm). So a bucket that is full again is nothing that has to
  be kept.
* *The loop guard* (`loopGuard`). It counts what one caller repeats within the time that is given: the same call with
  the same arguments, or a round of two to four calls (A-B-A-B). The number of repetitions is that of the entry, else of
  the profile, else of the settings. Tools that say of themselves that they poll are left out, unless a pattern of more
  than `*` means them. A call that ends unsent (refused by a person or because nobody could be asked, a failing server,
  a full queue, a caller who left) is no longer counted then: it got no answer that could be the same again.
* *A limit's token stays taken*, also for a call that was not sent: it may have started a server, or asked a person, and
  a limit is what keeps both from happening too often.
* *Who* is the subject of the call, as its door knows it; else its session; else the room.
* *Memory* is bounded, in bytes too: a digest is kept of each call, and of each long name. What was used longest ago is
  forgotten first. So a caller may begin anew, but nothing is refused that should pass.
* *Time* is the room's clock.
* *A reload* that leaves the text of a limit as it was leaves its tokens, too. A limit with another text begins anew.

In a cluster each front has this gate for its clients, and hosts have none: they would count a call twice. Fronts tell
one another what they have taken of limits that hold beyond a session (`spent`, `heed_others`), some time later. So
such a limit lets more pass for that time, and the debt is paid afterwards. The loop guard is that of one front.

Rejected: sliding windows of times for each limit. They are exact, and keep as many numbers as there are calls.
Rejected: to hold a call until there is a token. A model that waits learns nothing, and its client's own time runs out.
Rejected: to look at answers, and refuse a call only when they were equal. They would have to be kept.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ..actors.watchers import Order, Watchers
from ..catalogue.namespace import Target
from ..config.model import Config, selector
from ..config.rate_texts import MOST_REPEATS, Limit, by_pattern, limit_of, texts_of
from ..protocol.bounds import LIMITS_FILLED, LOOP_CALLERS, LOOP_CALLS
from ..protocol.errors import CallError, RateLimited, Reach, RepeatedCall, UsageError, place
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.safe_text import counted
from .audit import AUDITED, digest_of
from .gates import GateCase, Ruling

if TYPE_CHECKING:
    from ..actors.call import Call

Key = tuple[str, ...]
PastCall = tuple[str, float]  # what was called, and when
_ROUND: Final = 4  # calls of the longest round that is seen as a loop
_ROUNDS: Final = 3  # of it, at least
_PLANS: Final = 4_096  # names whose limits are known without looking for them
_POLLS: Final = lazy_pattern(
    r"(?:^|_)(?:poll|polls|polling|wait|waits|watch|status|progress|ping|heartbeat)(?:_|$)", re.IGNORECASE
)
_SAYS_SO: Final = lazy_pattern(
    r"\bpoll(?:s|ed|ing)?\b|\bcall (?:it|this|this tool|again) (?:again|repeatedly|until)\b", re.IGNORECASE
)
_OF_SESSION: Final = "\0session "  # before the name of a session that stands for a principal
_LONG: Final = 256  # characters of a name; of a longer one a digest is kept
_MORE: Final = ("inputResponses", "requestState")  # with another one of these it is another call


# ---- the policy: pure, and without a clock ---------------------------------------------------------------------------
class Rates:
    """The limits as they are filled."""

    def __init__(self, most: int = LIMITS_FILLED) -> None:
        self._most = most
        self._full_at: OrderedDict[Key, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def wait(self, key: Key, limit: Limit, now: float) -> float:
        """Seconds until there is a token; 0: there is one."""
        each = limit.period / limit.calls
        missing = self._full_at.get(key, now) - now - (limit.burst - 1) * each
        return missing if missing > each * 1e-6 else 0.0  # what the clock rounds is no time

    def take(self, key: Key, limit: Limit, now: float, calls: float = 1) -> None:
        """Take the tokens of so many calls, whether there are any or not."""
        full_at = max(self._full_at.get(key, now), now) + calls * limit.period / limit.calls
        self._full_at[key] = min(full_at, now + (limit.burst + limit.calls) * limit.period / limit.calls)
        self._full_at.move_to_end(key)
        while self._full_at and (
            len(self._full_at) > self._most or next(iter(self._full_at.values())) <= now
        ):
            self._full_at.popitem(last=False)

    def keep(self, is_kept: Callable[[Key], bool]) -> None:
        """Forget every other limit."""
        self._full_at = OrderedDict((key, at) for key, at in self._full_at.items() if is_kept(key))


class Repeats:
    """What callers have called, for the loop guard."""

    def __init__(self, calls: int = LOOP_CALLS, callers: int = LOOP_CALLERS) -> None:
        self._most_calls = calls
        self._most_callers = callers
        self._times: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()
        self._rows: OrderedDict[str, deque[PastCall]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times) + len(self._rows)

    def judge(self, who: str, call: str, limit: Limit, now: float) -> tuple[str, float] | None:
        """Why this call is one of a loop, and how many seconds it stays one; None: it may be made."""
        since, span = now - limit.period, f"{_span(limit.period)}"
        times = self._times.get((who, call))
        if times is not None and len(times) >= limit.calls and (first := times[-limit.calls]) > since:
            what = f"it was made {limit.calls} times in {span} with the same arguments"
            return what, first - since
        row = self._rows.get(who, ())
        for length in range(2, _ROUND + 1):
            need = max(limit.calls, _ROUNDS * length)
            if len(row) < need or row[-length][0] != call or row[-need][1] <= since:
                continue
            last = list(islice(reversed(row), need))
            goes_round = all(last[at][0] == last[at - length][0] for at in range(length, need))
            if goes_round and len({each for each, _ in last[:length]}) > 1:
                return f"the last {need} calls were the same {length} over and over", last[-1][1] - since
        return None

    def note(self, who: str, call: str, now: float) -> PastCall:
        """The call is made. Returns what `take_back` needs."""
        times = self._times.setdefault((who, call), deque(maxlen=MOST_REPEATS))
        times.append(now)
        self._times.move_to_end((who, call))
        if len(self._times) > self._most_calls:
            self._times.popitem(last=False)
        row = self._rows.setdefault(who, deque(maxlen=max(MOST_REPEATS, _ROUNDS * _ROUND)))
        made = call, now
        row.append(made)
        self._rows.move_to_end(who)
        if len(self._rows) > self._most_callers:
            self._rows.popitem(last=False)
        return made

    def take_back(self, who: str, made: PastCall) -> None:
        """The call was not made after all."""
        call, at = made
        times, row = self._times.get((who, call)), self._rows.get(who)
        if times is not None and at in times:
            times.remove(at)
            if not times:
                del self._times[who, call]
        for index in reversed(range(len(row or ()))):
            if row is not None and row[index] is made:
                del row[index]
                break


def _span(seconds: float) -> str:
    return f"{seconds:g} s"


# ---- what the configuration says of one call -------------------------------------------------------------------------
class _Rule(msgspec.Struct, frozen=True):
    """A limit, and where it stands."""

    limit: Limit
    label: str  # `settings.limits["github_*"]: 30/min`

    def key(self, who: str, case: GateCase, original: str) -> Key:
        """The bucket of a limit for this call."""
        per = self.limit.per
        return (
            self.label,
            who if "principal" in per else "",
            _short(case.session or "") if "session" in per else "",
            case.server if per & {"server", "tool"} else "",
            _short(original) if "tool" in per else "",
        )


class _CallRules(msgspec.Struct, frozen=True):
    """What holds for the calls of one name. `guard`: of its loops; `is_meant`: by a pattern of its own."""

    rules: tuple[_Rule, ...] = ()
    guard: _Rule | None = None
    is_meant: bool = False


class RateGate:
    """The gate of limits and loops. `now` is the room's clock; its watchers hear how calls end."""

    def __init__(self, now: Callable[[], float], watchers: Watchers) -> None:
        self.is_needed = False  # whether the configuration says anything of limits or loops
        self._now = now
        self._config = Config()
        self._plans: dict[tuple[str, str | None, str, str], _CallRules] = {}
        self._rates = Rates()
        self._repeats = Repeats()
        self._watchers = watchers
        self._watches = False
        self._open: dict[
            Call, tuple[str, PastCall]
        ] = {}  # those that the loop guard counts, and who makes them
        self._refused: dict[tuple[str, str], int] = {}  # how often, by server, and the limit's label
        self._limits: dict[str, Limit] = {}  # by label
        self._spent: dict[Key, float] | None = None  # what others have to be told; None: there are no others

    def heed(self, config: Config) -> None:
        """Use this configuration from now on. Limits that it does not change stay as they are filled."""
        self._config = config
        self._plans = {}
        said = (*config.servers.values(), *config.profiles.values(), config.settings)
        self.is_needed: bool = any(one.limits or one.loop_guard for one in said)
        if not self.is_needed:
            self._repeats = Repeats()
        self._watch(any(one.loop_guard for one in said))
        rules = _all_rules(config) if self.is_needed else ()
        self._limits = labels = {rule.label: rule.limit for rule in rules}
        self._rates.keep(lambda key: key[0] in labels)
        self._refused = {key: count for key, count in self._refused.items() if key[1] in labels}

    def _watch(self, guards: bool) -> None:
        """Hear how calls end as long as there is a loop guard: nobody else pays for it."""
        if guards == self._watches:
            return
        self._watches = guards
        if guards:
            self._watchers.add(self, Order.GATES)
        else:
            self._watchers.remove(self)
            self._open.clear()

    # ---- calls in ---------------------------------------------------------------------------------------------------

    def judge(self, case: GateCase) -> Ruling | None:
        """As a gate: refuses a call over a limit, and one more of a loop. A call that passes is counted at the rim."""
        call = case.call
        if call.method not in AUDITED:
            return None
        original = call.original or ""
        shown = call.tool or original
        plan = self._plan(case.server, case.profile, shown, original)
        if not plan.rules and plan.guard is None:
            return None
        now, who = self._now(), _who(case)
        taken = list[tuple[Key, Limit]]()
        over: tuple[float, _Rule] | None = None
        for rule in plan.rules:
            key = rule.key(who, case, original)
            wait = self._rates.wait(key, rule.limit, now)
            if wait > 0 and (over is None or wait > over[0]):
                over = wait, rule
            taken.append((key, rule.limit))
        if over is not None:
            wait, rule = over
            error = RateLimited(shown, case.server, limit=rule.label, retry_in=wait)
            return self._refusal(case, rule, error)
        made = self._made(case, plan, original)
        if plan.guard is not None and made is not None:
            loop = self._repeats.judge(who, made, plan.guard.limit, now)
            if loop is not None:
                what, wait = loop
                label = plan.guard.label
                error = RepeatedCall(shown, case.server, what=what, limit=label, retry_in=wait)
                return self._refusal(case, plan.guard, error)
        return Ruling(partial(self._pass, call, taken, who, made, now))

    def _pass(
        self, call: Call, taken: Iterable[tuple[Key, Limit]], who: str, made: str | None, now: float
    ) -> None:
        for key, limit in taken:
            self._rates.take(key, limit, now)
            spent = self._spent
            if spent is not None and _is_for_all(key, limit) and (key in spent or len(spent) < LIMITS_FILLED):
                spent[key] = spent.get(key, 0.0) + 1
        if made is not None:
            self._open[call] = who, self._repeats.note(who, made, now)

    def ended(self, call: Call) -> None:
        """As a watcher of calls: one that was not sent is none of a loop."""
        counted_as = self._open.pop(call, None)
        reach = call.reach if call.error is None else call.error.reach
        if counted_as is not None and reach is Reach.NOT_SENT:
            self._repeats.take_back(*counted_as)

    def _refusal(self, case: GateCase, rule: _Rule, error: CallError) -> Ruling:
        return Ruling(partial(self._note, case.server, rule.label), error)

    def _note(self, server: str, label: str) -> None:
        self._refused[server, label] = self._refused.get((server, label), 0) + 1

    def _made(self, case: GateCase, plan: _CallRules, original: str) -> str | None:
        """What the loop guard knows the call by; None: it does not look at this call."""
        if plan.guard is None or (not plan.is_meant and polls(case.target_of(original))):
            return None
        return _print(case.server, original, case.call)

    # ---- with others ------------------------------------------------------------------------------------------------

    def spent(self) -> Mapping[Key, float]:
        """The calls that limits have let pass here since this was asked last, for other rooms with the same limits."""
        found, self._spent = self._spent or {}, {}
        return found

    def heed_others(self, spent: Mapping[Key, float]) -> None:
        """Calls that limits have let pass in other rooms."""
        now = self._now()
        for key, calls in spent.items():
            limit = self._limits.get(key[0])
            if limit is not None:
                self._rates.take(key, limit, now, calls)

    # ---- what is told -----------------------------------------------------------------------------------------------

    @property
    def refused(self) -> Mapping[str, int]:
        """How many calls each limit has refused, by where it stands and what it says."""
        found: dict[str, int] = {}
        for (_, label), count in self._refused.items():
            found[label] = found.get(label, 0) + count
        return found

    def told(self, server: str) -> tuple[str, ...]:
        """The limits that have refused calls of this server, in words."""
        return tuple(
            f"{label} refused {counted(count, 'call')}"
            for (name, label), count in self._refused.items()
            if name == server
        )

    # ---- which limits fit -------------------------------------------------------------------------------------------

    def _plan(self, server: str, profile: str | None, shown: str, original: str) -> _CallRules:
        key = server, profile, shown, original
        plan = self._plans.get(key)
        if plan is None:
            plan = self._look(*key)
            if max(len(shown), len(original)) <= _LONG:
                if len(self._plans) >= _PLANS:
                    self._plans.clear()
                self._plans[key] = plan
        return plan

    def _look(self, server: str, profile: str | None, shown: str, original: str) -> _CallRules:
        config = self._config
        definition, seen = config.servers.get(server), config.profiles.get(profile or "")
        levels = [
            *([] if definition is None else [(_of_server(server), definition, original)]),
            *([] if seen is None else [(_of_profile(profile or ""), seen, shown)]),
            (("settings",), config.settings, shown),
        ]
        rules = list[_Rule]()
        guard: tuple[_Rule | None, bool] | None = None
        for where, level, name in levels:
            for pattern, said in by_pattern(level.limits).items():
                if selector((pattern,))(name):
                    rules += _rules(where, "limits", pattern, said)
            for pattern, said in by_pattern(level.loop_guard).items():
                if guard is None and selector((pattern,))(name):
                    found = _rules(where, "loopGuard", pattern, said)
                    guard = next(iter(found), None), pattern != "*"
        return _CallRules(tuple(rules), *(guard or (None, False)))


def _of_server(name: str) -> tuple[str, ...]:
    return "mcpServers", name


def _of_profile(name: str) -> tuple[str, ...]:
    return "profiles", name


def _rules(where: tuple[str, ...], key: str, pattern: str, said: Any) -> Iterable[_Rule]:
    for text in texts_of(said):
        yield _Rule(limit_of(text), f"{place('', *where, key, pattern)}: {text}")


def _all_rules(config: Config) -> Iterable[_Rule]:
    levels = [
        *((_of_server(name), one) for name, one in config.servers.items()),
        *((_of_profile(name), one) for name, one in config.profiles.items()),
        (("settings",), config.settings),
    ]
    for where, level in levels:
        for key, said in (("limits", level.limits), ("loopGuard", level.loop_guard)):
            for pattern, texts in by_pattern(said).items():
                yield from _rules(where, key, pattern, texts)


def _who(case: GateCase) -> str:
    subject = case.call.origin.subject
    return _short(subject) if subject else f"{_OF_SESSION}{_short(case.session or '')}"


def _short(name: str) -> str:
    return name if len(name) <= _LONG else f"\0{_digest(name)}"


def _digest(*parts: str) -> str:
    found = hashlib.blake2b(digest_size=20)
    for part in parts:
        raw = part.encode(errors="surrogatepass")
        found.update(b"%d:%b" % (len(raw), raw))
    return found.hexdigest()


def _is_for_all(key: Key, limit: Limit) -> bool:
    """Whether a bucket is the same in every room: it is of no session."""
    return "session" not in limit.per and not key[1].startswith(_OF_SESSION)


def polls(target: Target | None) -> bool:
    """Whether a tool says of itself that it is called again and again: in its name, or in its description."""
    return target is not None and _says_that_it_polls(target.original, target.description)


@lru_cache(maxsize=_PLANS)
def _says_that_it_polls(name: str, description: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("-", "_"))
    return _POLLS.search(words) is not None or _SAYS_SO.search(description) is not None


def _print(server: str, original: str, call: Call) -> str | None:
    """What is equal for two calls that ask for the same. None: it cannot be told."""
    params = call.params or {}
    said = params.get("arguments")
    try:
        arguments = b"" if said is None else _json(said)
        more = {name: params[name] for name in _MORE if name in params}
        further = encode_json(more).decode() if more else ""
    except UsageError:  # it cannot be written as JSON, and will be refused for it
        return None
    digest, _ = digest_of(arguments)
    return None if digest is None else _digest(server, call.method, original, digest, further)


def _json(said: object) -> bytes:
    return bytes(said) if isinstance(said, msgspec.Raw | bytes) else encode_json(cast("Any", said))
