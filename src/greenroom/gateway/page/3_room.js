// The model: what the stream has told, and what follows from its events. Sections read it; only the stream writes it.
//
// Histories and latencies are made here from events, so the room keeps nothing for the page. All moments are the
// room's: `now()` is its clock, as far as the last message tells. While nothing comes, it stands still.

const WINDOW = 900; // seconds of history
const BIN = 15; // seconds of one bar
const BINS = WINDOW / BIN;
const RECENT = 300; // ended calls that are listed
const SAMPLES = 256; // durations per tool

let clockAhead = 0; // of the room's clock before this one's; that has its own beginning
let wallAhead = 0; // of the time of day, where the room is, before the room's clock
let stoodAt = null; // the last moment that was heard of, while nothing comes
const now = () => stoodAt ?? Date.now() / 1000 + clockAhead;
const wallNow = () => now() + wallAhead;

/** Counts of the last quarter of an hour, in bars; or of another time, in `count` bars of `seconds`. */
class Bars {
  #seconds;
  #count;
  #good;
  #bad;
  #last = 0; // the bar that was written last, as its number since 1970

  constructor(seconds = BIN, count = BINS) {
    [this.#seconds, this.#count] = [seconds, count];
    [this.#good, this.#bad] = [new Uint32Array(count), new Uint32Array(count)];
  }

  #turn(bar) {
    const first = Math.max(this.#last + 1, bar - this.#count + 1);
    for (let each = first; each <= bar; each++) this.#good[each % this.#count] = this.#bad[each % this.#count] = 0;
    this.#last = Math.max(this.#last, bar);
  }

  add(at, isBad) {
    const bar = Math.floor(at / this.#seconds);
    this.#turn(bar);
    if (bar > this.#last - this.#count) (isBad ? this.#bad : this.#good)[bar % this.#count] += 1;
  }

  /** `[good, bad]` of each bar, the oldest first. */
  read(at) {
    const end = Math.floor(at / this.#seconds);
    return Array.from({ length: this.#count }, (_, place) => {
      const bar = end - this.#count + 1 + place;
      const known = bar <= this.#last && bar > this.#last - this.#count;
      return known ? [this.#good[bar % this.#count], this.#bad[bar % this.#count]] : [0, 0];
    });
  }
}

const minuteBars = () => new Bars(1, 60);

/** What is known of one tool's calls: how many, how many failed, and the last durations. */
class Latency {
  constructor(tool, server) {
    Object.assign(this, { tool, server, calls: 0, failed: 0, last: 0 });
    this.taken = [];
  }

  add(call) {
    this.calls += 1;
    this.failed += call.isBad;
    this.last = call.at;
    if (call.taken != null && call.outcome !== "cancelled") {
      if (this.taken.length < SAMPLES) this.taken.push(call.taken);
      else this.taken[this.calls % SAMPLES] = call.taken;
    }
  }

  /** The duration that this share of the calls did not exceed; null without any. */
  quantile(share) {
    if (!this.taken.length) return null;
    const sorted = Float64Array.from(this.taken).sort();
    return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  }
}

const room = {
  hello: null,
  ready: false, // a snapshot has come
  servers: new Map(), // by name, in the order of the configuration
  pool: {},
  clients: [],
  tasks: [],
  approvals: [],
  audit: null,
  held: [], // what holds calls now
  hosts: null,
  calls: [],
  pins: [],
  projects: [],
  // from events
  moves: new Map(), // transitions, by server
  scopes: new Map(), // states of its addresses, by server
  bars: new Map(), // by server
  minute: minuteBars(), // all calls
  tools: new Map(), // Latency by tool
  ended: [], // calls, the newest first
  told: [], // decisions and notes, the newest first
  knownSince: null, // the first event
  countedSince: null, // since when no call is missing
  heardUntil: 0, // when the stream ended last
  known: new Set(), // calls and connections that were told, which need not have a number in the stream
  lastSeq: 0,
};

const isOwner = () => room.hello?.may === "act";
const mayAct = () => isOwner() && link.state === "live";

/** Forget what events have told: another gateway answers, or the same one from a new start. */
function forgetEvents() {
  for (const each of [room.moves, room.scopes, room.bars, room.tools, room.known]) each.clear();
  Object.assign(room, { minute: minuteBars(), ended: [], told: [], knownSince: null, countedSince: null, lastSeq: 0 });
}

const WHOLE = ["pool", "clients", "tasks", "approvals", "audit", "held", "hosts", "calls", "pins", "projects"];

function takeSnapshot(data) {
  setClock(data);
  room.servers = new Map(data.servers.map((row) => [row.name, seenAt(row, data.at)]));
  takeWhole(data);
  // What happened while nobody listened was told again, as far back as that reaches.
  if (room.countedSince === null || data.countedSince > room.heardUntil) room.countedSince = data.countedSince;
  room.ready = true;
  changed("servers", ...WHOLE);
}

function takeChange(data) {
  setClock(data);
  const kinds = takeWhole(data);
  for (const row of data.servers?.changed ?? []) room.servers.set(row.name, seenAt(row, data.at));
  for (const name of data.servers?.gone ?? []) room.servers.delete(name);
  if (data.servers) kinds.push("servers");
  changed(...kinds);
}

function takeWhole(data) {
  const kinds = WHOLE.filter((key) => key in data);
  for (const key of kinds) {
    room[key] = Array.isArray(room[key]) ? (data[key] ?? []) : data[key];
    if (Array.isArray(room[key]))
      for (const each of room[key]) if (each && typeof each === "object") each.seen = data.at;
  }
  return kinds;
}

/** A row, with the moment from which its seconds count, as its further addresses have it. */
function seenAt(row, at) {
  const addresses = (row.addresses ?? []).map((each) => ({ ...each, seen: at }));
  return { ...row, addresses, seen: at };
}

function setClock({ at, wall }) {
  if (Math.abs(now() - at) > 1) clockAhead = at - Date.now() / 1000;
  if (wall != null) wallAhead = wall - at;
}

const MOST_KNOWN = 10_000;

/** Whether this record was told before: events are told again after a pause. What a gateway remembers of calls and
 * connections from before anybody looked has no number in the stream (0), so calls are known by their own. */
function isKnown(record) {
  if (record.seq && record.event !== "CallEnded") return record.seq <= room.lastSeq;
  const key =
    record.event === "CallEnded"
      ? `call ${record.call}`
      : [record.event, record.server, record.scope, record.incarnation, record.to].join("\n");
  if (room.known.has(key)) return true;
  room.known.add(key);
  if (room.known.size > MOST_KNOWN) room.known.delete(room.known.values().next().value);
  return false;
}

/** Take records of events. */
function takeEvents(records) {
  for (const record of records) {
    if (isKnown(record)) continue;
    room.lastSeq = Math.max(room.lastSeq, record.seq);
    room.knownSince ??= record.at;
    if (record.kind === "transition") takeMove(record);
    else if (record.event === "CallEnded") takeCall(record);
    if (record.kind === "decision" || record.kind === "note" || record.kind === "transition") {
      room.told.unshift(record);
      if (room.told.length > RECENT * 1.5) room.told.length = RECENT;
    }
  }
  changed("events");
}

/** Events are missing that came faster than they were read: whatever is counted here counts from now on. */
function takeLagged() {
  room.countedSince = now();
  changed("events");
}

// Of a server that has an address for each session: the state of the one that is furthest.
const FURTHEST = ["connected", "connecting", "draining", "idle"];
const furthest = (states) => FURTHEST.find((state) => states.includes(state)) ?? "idle";

function takeMove(record) {
  const scopes = forServer(room.scopes, record.server, () => new Map());
  if (record.to === "closed") scopes.delete(record.scope);
  else scopes.set(record.scope, record.to);
  const moves = forServer(room.moves, record.server, () => []);
  const whole = furthest([...scopes.values()]);
  const isNew = whole !== moves.at(-1)?.whole;
  moves.push({ ...record, whole, wholeSince: isNew ? record.at : moves.at(-1).wholeSince });
  const since = record.at - WINDOW;
  while (moves.length > 1 && moves[1].at < since) moves.shift();
  if (moves.length > 400) moves.splice(0, 100);
}

function takeCall(record) {
  const call = { ...record, isBad: record.isError === true || !["result", "cancelled"].includes(record.outcome) };
  room.minute.add(call.at, call.isBad);
  forServer(room.bars, call.server, () => new Bars()).add(call.at, call.isBad);
  const tool = call.tool ?? call.method;
  forServer(room.tools, `${call.server}\n${tool}`, () => new Latency(tool, call.server)).add(call);
  room.ended.unshift(call);
  if (room.ended.length > RECENT * 1.5) room.ended.length = RECENT;
}

function forServer(map, key, make) {
  let found = map.get(key);
  if (found === undefined) map.set(key, (found = make()));
  return found;
}

/** When the row came into its present state, as far as events tell. */
function stateSince(name) {
  return room.moves.get(name)?.at(-1)?.wholeSince ?? null;
}

// ---- counts that several sections show

const isConnected = (row) => (row.status ?? row.state) === "connected";

/** A server is connected if one of its addresses is, as `greenroom status` counts. */
const connectedSomewhere = (row) => isConnected(row) || row.addresses.some(isConnected);

function counts() {
  const said = { connected: 0, inService: 0, inFlight: 0, queued: 0, failed: 0, tools: 0 };
  for (const row of room.servers.values()) {
    said.inService += !row.disabled;
    said.connected += connectedSomewhere(row);
    said.failed += STATES[stateOf(row)].group === "failed";
    said.tools += row.disabled ? 0 : (row.toolCount ?? 0);
    for (const each of [row, ...row.addresses]) {
      said.inFlight += each.inFlight;
      said.queued += each.queued;
    }
  }
  return said;
}

/** How many decisions wait for a person. */
const changesWaiting = () => pinsWaiting().length + room.projects.length;
const pinsWaiting = () => room.pins.filter((pin) => !leftBlocked.has(pin.digest));

// ---- drawing: at most once per frame, and only what is seen

const waiting = new Set();
let drawing = 0;

function changed(...kinds) {
  for (const kind of kinds) waiting.add(kind);
  if (!drawing && !document.hidden) drawing = requestAnimationFrame(drawAll);
}

function drawAll() {
  drawing = 0;
  const kinds = new Set(waiting);
  waiting.clear();
  draw(kinds);
}
