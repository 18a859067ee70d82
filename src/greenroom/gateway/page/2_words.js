// How things are said: the words of `greenroom status` and `greenroom explain`, and numbers and times in one form.

const counted = (count, noun, more = `${noun}s`) => `${number(count)} ${count === 1 ? noun : more}`;
const NUMBERS = new Intl.NumberFormat("en-US");
const number = (value) => (value == null ? "" : NUMBERS.format(value));

/** How long something takes or took, in at most three digits. */
function duration(seconds) {
  if (seconds == null) return "";
  if (seconds > 0 && seconds < 0.00995) return `${Math.max(0.1, seconds * 1000).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  return span(seconds);
}

/** How long something has been so: whole seconds, then larger units. */
function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.round(whole / 60)} min`;
  if (whole < 172800) return `${Math.round(whole / 3600)} h`;
  return `${Math.round(whole / 86400)} days`;
}

/** The time of day of a moment of the room's clock. */
const clock = (at) => new Date((at + wallAhead) * 1000).toLocaleTimeString("en-GB");

// The states, the worst first, as a table sorts them. `mark` is a shape; `kind` its colour; `group` the filter it is in.
const STATES = {
  failed: { word: "failed", mark: "failed", kind: "failed", group: "failed" },
  lost: { word: "lost", mark: "failed", kind: "failed", group: "failed", tip: "it ended while it ran" },
  broken: { word: "broken", mark: "failed", kind: "failed", group: "failed", tip: "its entry cannot be used" },
  "needs-auth": { word: "needs auth", mark: "person", kind: "person", group: "person", tip: "it waits for a login" },
  untrusted: {
    word: "untrusted",
    mark: "person",
    kind: "person",
    group: "person",
    tip: "its project’s file is not trusted",
  },
  draining: {
    word: "draining",
    mark: "draining",
    kind: "draining",
    group: "moving",
    tip: "it ends when its calls have ended",
  },
  connecting: { word: "connecting", mark: "connecting", kind: "connecting", group: "moving" },
  installing: { word: "installing", mark: "connecting", kind: "connecting", group: "moving" },
  waiting: { word: "waiting", mark: "connecting", kind: "connecting", group: "moving", tip: "its start waits for its turn" },
  connected: { word: "connected", mark: "connected", kind: "connected", group: "connected" },
  cached: {
    word: "cached",
    mark: "ring",
    kind: "ring",
    group: "resting",
    tip: "its tools are known; a call of one starts it",
  },
  "not-connected": {
    word: "not connected",
    mark: "dotted",
    kind: "dotted",
    group: "resting",
    tip: "nothing is known of it yet",
  },
  down: {
    word: "down",
    mark: "disabled",
    kind: "disabled",
    group: "resting",
    tip: "stopped on purpose; no call starts it",
  },
  disabled: { word: "disabled", mark: "disabled", kind: "disabled", group: "disabled" },
};
const RANK = new Map(Object.keys(STATES).map((key, rank) => [key, rank]));

const GROUPS = [
  ["all", "All"],
  ["connected", "Connected"],
  ["moving", "Starting or draining"],
  ["failed", "Failed"],
  ["person", "Needs auth or trust"],
  ["resting", "Not running"],
  ["disabled", "Disabled"],
];

/** Whether a server that was lost is started by a call again: nothing refuses that any more, which has no event. */
const startsAgain = (row) =>
  row.status === "failed" && row.retryIn != null && !(remaining(row, row.retryIn) > 0) &&
  row.cached && !row.failedStarts && !row.waitingFor && !row.quarantined;

/** What a server does now, in the word of `greenroom status`. */
const stateOf = (row) => (startsAgain(row) ? "lost" : row.status in STATES ? row.status : "not-connected");

/** The mark and the word of a state. */
function stateMark(state) {
  const { word, mark: shape, kind, tip } = STATES[state];
  return el("span", { class: `state ${kind}`, title: tip }, mark(shape, kind), el("span", {}, word));
}

const PLACES = { slot: "a slot", permit: "a start permit", "its turn for discovery": "its turn" };

/** What a start waits for and for how long, in the words of `greenroom status`. */
function waitInWords(row) {
  const waiting = lasted(row, row.waiting);
  const took = waiting == null ? "" : ` ${span(waiting)}`;
  const since = took && ` for${took}`;
  const next = remaining(row, row.retryIn);
  const itself = remaining(row, row.nextTry);
  const place = row.waitingFor;
  const said = [];
  if (place === "breaker") said.push(`waits${took}`);
  else if (place === "install") said.push(`installing${since}${row.lastLine ? `: ${oneLine(row.lastLine)}` : ""}`);
  else if (place) said.push(`waiting${took} for ${oneLine(PLACES[place] ?? place)}`);
  else if (row.state === "connecting" && waiting != null)
    said.push(`for${took}${row.lastLine ? `: ${oneLine(row.lastLine)}` : ""}`);
  if (next != null && place) said.push(next > 0.5 ? `next try in ${span(next)}` : "next try now");
  else if (next > 0.5) said.push(`refuses calls for ${span(next)}`);
  if (itself > 0.5 && !place) said.push(`next try in ${span(itself)}${next > 0.5 ? "" : ", or by a call"}`);
  return said.join(", ");
}

const STARTING = new Set(["connecting", "installing", "waiting"]);

/** Why a row has failed. */
const reason = (row) => joined([row.broken, row.down, row.failure]);

/** The notes of a row, what matters most first. `withReason`: also why it has failed. */
function notes(row, withReason = true) {
  const said = [];
  const wait = waitInWords(row);
  if (row.broken && !row.untrusted && withReason) said.push(row.broken);
  if (row.disabled) return joined(said);
  if (row.untrusted) said.push(row.broken ?? "");
  if (wait && row.state === "connecting") said.push(wait);
  const state = stateOf(row);
  if (row.down && withReason) said.push(row.down);
  if (row.failure && withReason) said.push(STARTING.has(state) ? `the last start failed: ${row.failure}` : row.failure);
  if (row.failedAgo != null) said.push(`last failure ${span(lasted(row, row.failedAgo))} ago`);
  if (state === "lost") said.push("a call starts it again");
  if (row.quarantined) said.push(`quarantined: ${row.quarantined}`);
  if (wait && row.state !== "connecting") said.push(wait);
  const own = row.addresses.filter((each) => each.state === "connected").length;
  if (own) said.push(`${state === "connected" ? "" : "connected "}for ${counted(own, "session or call", "sessions or calls")}`);
  if (row.changed?.length) said.push(`${counted(row.changed.length, "definition")} changed`);
  said.push(...(row.problems ?? []));
  if (row.hidden?.length) said.push(`hidden characters in ${row.hidden[0]}`);
  if (row.faults?.length) said.push(`clients would refuse ${row.faults[0]}`);
  if (row.odd) said.push(row.odd);
  return joined(said);
}

/** Notes on one line: what ends as a sentence does not, if more follows. */
function joined(said) {
  const lines = said.filter(Boolean).map((each) => oneLine(each));
  return lines.map((line, place) => (place < lines.length - 1 ? line.replace(/\.$/, "") : line)).join("; ");
}

// Seconds in a row count from the moment at which it was sent (`seen`); here they go on.
const lasted = (row, seconds) => (seconds == null ? null : seconds + Math.max(0, now() - row.seen));
const remaining = (row, seconds) => (seconds == null ? null : Math.max(0, seconds - Math.max(0, now() - row.seen)));

/** A transition in words: `connected`, or why it ended. */
function moveInWords(move) {
  const because = [...new Set([move.cause, move.detail].filter(Boolean).map((each) => oneLine(each)))].join(": ");
  const whose = move.scope === "shared" ? "" : `${oneLine(move.scope, 60)}: `;
  return whose + (because || (move.to === "idle" || move.to === "closed" ? "not running" : move.to));
}

const outcomeInWords = (call) => (call.isError ? "tool’s error" : oneLine(call.outcome.replaceAll("_", " "), 60));
