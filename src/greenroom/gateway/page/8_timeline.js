// Timelines: of the last minutes of a room, and of a tape (`9_tape.js`).
//
// Spans are buttons, of which Tab comes to one; the arrow keys walk from there. What is too near to be seen apart is one
// span, which zooms in when it is opened: so there are never more than a screen can show, however long a tape is.

const LANE = matchMedia("(pointer: coarse)").matches ? 22 : 13; // units of one row of a lane
const ROWS = 24; // of a lane, at most
const MOST_LANES = 200; // of a group
const WIDTH = 1000; // units of a lane
const NARROW = 2; // units under which a span is joined with its neighbours
const JOINED = 8; // units of such a span, at most
const GROUPED = [
  ["clients", "Calls, by client"],
  ["servers", "Servers"],
];
const ZOOM = 4;

/**
 * The lanes of a timeline, in order, each with its spans in theirs. Those of one client, or of the calls of one address,
 * are one lane here. A span knows its lane, and beside which call it waits (`strand`).
 */
function inOrder(lanes) {
  const joined = new Map();
  for (const { group, name, spans, client, server, scope, isCalls = false } of lanes) {
    const key = JSON.stringify([group, client ?? server ?? name, scope, isCalls]);
    const lane = forServer(joined, key, () => ({ group, name, client, server, scope, isCalls, spans: [] }));
    for (const span of spans)
      lane.spans.push(Object.assign(span, { end: span.end ?? span.start, about: span.about ?? {}, lane, strand: name }));
  }
  const found = [...joined.values()];
  for (const lane of found) lane.spans.sort((one, other) => one.start - other.start || other.end - one.end);
  const inWords = (lane) => lane.client ?? lane.server ?? lane.name;
  return found.sort(
    (one, other) =>
      inWords(one).localeCompare(inWords(other), "en", { numeric: true }) ||
      (one.scope === "shared" ? "" : (one.scope ?? "")).localeCompare(other.scope === "shared" ? "" : (other.scope ?? ""), "en", { numeric: true }) ||
      one.isCalls - other.isCalls,
  );
}

/** Whose a lane is, in words. */
const laneInWords = (lane) =>
  [lane.client ?? lane.server ?? lane.name, lane.scope && lane.scope !== "shared" && scopeInWords(lane.scope), lane.isCalls && "calls"]
    .filter(Boolean)
    .join(", ");
const scopeInWords = (scope) => (scope === "call:catalogue" ? "its list reader" : scope.replace(":", " "));

/** The colour of a span: a failure, a wait, a state, a mark, or a call that went well. */
function spanKind({ kind, name, about, isBad }) {
  if (
    isBad ||
    about.isError === true ||
    (about.outcome &&
      !["result", "cancelled", "sent again", "open"].includes(about.outcome)) ||
    ["failed to connect", "lost", "failed: bug"].includes(about.cause)
  )
    return "error";
  if (kind === "wait" || name === "connecting" || name === "draining") return "wait";
  if (kind === "state") return "state";
  return kind === "mark" ? "told" : "call";
}

/** How long a span took; of one that goes on or began before what is known, as much as that is. */
const tookInWords = ({ start, end, about, isCut }) =>
  `${isCut ? "more than " : ""}${duration(end - start)}${about.outcome === "open" ? " so far" : ""}`;

// The colours in words; a mark of its own stands for what is no length of time.
const LEGEND = [
  ["call", "a call"],
  ["error", "failed"],
  ["wait", "waits, starts or drains"],
  ["state", "connected"],
  ["told", "a decision"],
];

const legend = () =>
  el("ul", { class: "legend", "aria-label": "Legend" }, LEGEND.map(([kind, word]) => el("li", {}, el("i", { class: kind }), word)));

/** Lanes with their spans, to look at and to walk along. `open(span)` shows one; `momentInWords(at, step)` says when,
 * so that two moments that are a step apart differ. */
function makeTimeline(open, momentInWords) {
  const groups = GROUPED.map(([group, title]) => {
    const lanes = el("div", { class: "lanes" });
    const more = el("p", { class: "muted" });
    return { group, lanes, more, node: block(title, lanes, more) };
  });
  const ticks = el("div", { class: "ticks", "aria-hidden": "true" }, el("div"));
  const tools = el("div", { class: "buttons zoom", role: "group", "aria-label": "Zoom" });
  const keys = el(
    "p",
    { class: "muted keys" },
    "Arrow keys walk, Enter opens, ",
    el("kbd", {}, "+"),
    " and ",
    el("kbd", {}, "−"),
    " zoom.",
  );
  const node = el(
    "div",
    { class: "timeline" },
    el("header", {}, tools, keys),
    legend(),
    ticks,
    groups.map((each) => each.node),
  );
  let lanes = [];
  let whole = [0, 1];
  let seen = [0, 1];
  let rows = []; // the buttons of each lane that is drawn, in the order of time
  let active = null;

  const press = (word, label, act) =>
    el("button", { type: "button", class: "small", "aria-label": label, title: label, on: { click: act } }, word);
  tools.append(
    press("◀", "Earlier", () => move(-0.5)),
    press("▶", "Later", () => move(0.5)),
    press("−", "Zoom out", () => zoom(1 / ZOOM)),
    press("+", "Zoom in", () => zoom(ZOOM)),
    press("All", "All of the time", () => look(...whole)),
  );

  /** Show this part of the time, within the whole. */
  function look(start, end) {
    const most = whole[1] - whole[0];
    const length = Math.min(most, Math.max(end - start, most * 1e-6, 1e-5));
    const first = Math.max(whole[0], Math.min(whole[1] - length, start));
    seen = [first, first + length];
    draw();
  }

  function move(share) {
    const step = (seen[1] - seen[0]) * share;
    look(seen[0] + step, seen[1] + step);
  }

  function zoom(factor, around = null) {
    const at = around ?? (seen[0] + seen[1]) / 2;
    const half = (seen[1] - seen[0]) / factor / 2;
    look(at - half, at + half);
  }

  function draw() {
    const [start, end] = seen;
    const kept = active?.span ?? null;
    rows = [];
    active = null;
    let count = 0;
    for (const { group, lanes: place, more, node: whose } of groups) {
      const own = [];
      let left = 0;
      let above = null;
      for (const lane of lanes) {
        if (lane.group !== group) continue;
        const spans = lane.spans.filter((each) => each.end >= start && each.start <= end);
        if (!spans.length) continue;
        count += spans.length;
        if (own.length >= MOST_LANES) left += 1;
        else own.push(drawLane(lane, above, spans, start, end));
        above = lane;
      }
      more.hidden = !left;
      setText(more, `${counted(left, "more lane")} ${left === 1 ? "is" : "are"} not shown. Each server’s own page has its last quarter of an hour.`);
      whose.hidden = !own.length;
      place.replaceChildren(...own);
    }
    tools.hidden = keys.hidden = ticks.hidden = !lanes.length;
    const isWhole = start === whole[0] && end === whole[1];
    for (const place of [0, 1, 2, 4]) tools.children[place].disabled = isWhole;
    ticks.firstChild.replaceChildren(
      ...[0, 0.25, 0.5, 0.75, 1].map((share) => el("span", {}, momentInWords(start + share * (end - start), (end - start) / 4))),
    );
    const same = kept && rows.flat().find((each) => each.span.parts.includes(kept.parts[0]));
    activate(same ?? rows[0]?.[0] ?? null);
    return count;
  }

  /** The spans of a lane in rows, those that are too near joined. */
  function placed(spans, start, end) {
    const at = (moment) => ((Math.min(end, Math.max(start, moment)) - start) / (end - start)) * WIDTH;
    const taken = []; // the last span of each row
    const found = [];
    let lastMark = null;
    const strands = new Map(); // where the last call of each strand is
    for (const span of spans) {
      const left = at(span.start);
      const right = Math.max(left + 1.5, at(span.end));
      if (span.kind === "wait" && right - left < NARROW) continue;
      const call = span.kind === "wait" && strands.get(span.strand);
      if (call && call.parts.length === 1 && call.parts[0].start <= span.start && call.parts[0].end >= span.end) {
        found.push({ parts: [span], left, right, row: call.row, isInside: true });
        continue;
      }
      const isNarrow = right - left < NARROW;
      if (span.kind === "mark") {
        if (lastMark && left - lastMark.left < NARROW) lastMark.parts.push(span);
        else found.push((lastMark = { parts: [span], left, right: left + 2, row: 0, isMark: true }));
        continue; // it stands over what goes on there
      }
      const near = isNarrow && taken.find((each) => each.isNarrow && left <= each.right + 1 && left - each.left < JOINED);
      if (near) {
        near.parts.push(span);
        near.right = Math.min(near.left + JOINED, Math.max(near.right, right));
        continue;
      }
      let row = taken.findIndex((each) => each.right <= left + 0.5);
      if (row < 0) row = taken.length < ROWS ? taken.length : ROWS - 1;
      const made = { parts: [span], left, right, row, isNarrow };
      if (span.kind === "call") strands.set(span.strand, made);
      if (row === ROWS - 1 && taken[row] && taken[row].right > left + 0.5 && left - taken[row].left < NARROW) {
        taken[row].parts.push(span);
        taken[row].right = Math.max(taken[row].right, right);
        continue;
      }
      taken[row] = made;
      found.push(made);
    }
    return { found, height: Math.max(1, taken.length) * LANE + 8 };
  }

  /** `above`: the lane over it, whose name need not be said again. */
  function drawLane(lane, above, spans, start, end) {
    const { found, height } = placed(spans, start, end);
    const drawn = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${height}`,
      preserveAspectRatio: "none",
      role: "group",
      "aria-label": `${counted(spans.length, "span")} of ${oneLine(laneInWords(lane), 120)}`,
    });
    drawn.style.setProperty("height", `${height}px`);
    const row = found
      .sort((one, other) => one.left - other.left || one.row - other.row || (one.isInside ?? false) - (other.isInside ?? false))
      .map((span) => ({ span, node: drawSpan(span), lane: rows.length }));
    for (const { node, span } of row.filter((each) => !each.span.isMark)) drawn.append(node, ...failedShare(span));
    for (const { node } of row.filter((each) => each.span.isMark)) drawn.append(node);
    for (const each of row) each.node.at = each;
    rows.push(row);
    return el(
      "div",
      { class: "lane" },
      el("span", { class: "name" }, laneName(lane, above)),
      drawn,
    );
  }

  function laneName(lane, above) {
    const isBelow = above !== null && lane.server !== undefined && lane.server === above.server;
    const name = lane.client ?? lane.server ?? lane.name;
    return [
      !isBelow && (room.servers.has(name) && lane.group === "servers" ? serverLink(name) : named(name)),
      lane.scope && lane.scope !== "shared" && !(isBelow && lane.scope === above.scope) && el("small", {}, named(scopeInWords(lane.scope))),
      lane.isCalls && el("small", { class: "muted" }, "calls"),
    ];
  }

  function drawSpan({ parts, left, right, row, isInside }) {
    const words = inWords(parts);
    const rect = svg("rect", {
      x: left.toFixed(1),
      y: row * LANE + 5,
      width: (right - left).toFixed(1),
      height: (LANE - 3) / (isInside ? 2 : 1),
      class: `${kindOf(parts)}${parts.length > 1 ? " many" : ""}`,
      role: "button",
      tabindex: "-1",
      "aria-label": words,
    });
    rect.append(svg("title", {}, document.createTextNode(words)));
    return rect;
  }

  function inWords(parts) {
    const [first] = parts;
    if (parts.length === 1) {
      const took = first.kind === "mark" ? "" : `, ${tookInWords(first)}`;
      const bad = spanKind(first) === "error" ? ", failed" : "";
      return `${oneLine(first.name)}${took}, at ${momentInWords(first.start)}${bad}`;
    }
    const bad = parts.filter((each) => spanKind(each) === "error").length;
    return `${counted(parts.length, "span")} from ${momentInWords(first.start)} on${bad ? `, ${bad} failed` : ""}. Open to zoom in`;
  }

  function kindOf(parts) {
    const kinds = new Set(parts.map(spanKind));
    return kinds.size === 1 ? [...kinds][0] : "call";
  }

  /** Over a span that stands for many: which share of them failed. */
  function failedShare({ parts, left, right, row }) {
    const bad = parts.filter((each) => spanKind(each) === "error").length;
    if (!bad || bad === parts.length) return [];
    const height = Math.max(3, ((LANE - 3) * bad) / parts.length);
    const top = row * LANE + 2 + LANE - height;
    const width = (right - left).toFixed(1);
    return [svg("rect", { class: "error share", x: left.toFixed(1), y: top.toFixed(1), width, height: height.toFixed(1), "aria-hidden": "true" })];
  }

  function openSpan({ span: { parts } }) {
    if (parts.length === 1) {
      open(parts[0], () => active?.node.focus());
      return;
    }
    const first = parts[0].start;
    const last = Math.max(...parts.map((each) => each.end));
    const margin = Math.max((last - first) * 0.1, (seen[1] - seen[0]) * 1e-4);
    look(first - margin, last + margin);
    active?.node.focus();
  }

  /** Make this the span that Tab comes to. */
  function activate(one) {
    if (active) setAttribute(active.node, "tabindex", "-1");
    active = one;
    if (one) setAttribute(one.node, "tabindex", "0");
  }

  node.addEventListener("click", (event) => {
    const one = event.target.closest("rect")?.at;
    if (!one) return;
    activate(one);
    openSpan(one);
  });

  node.addEventListener("focusin", (event) => {
    const one = event.target.at;
    if (one && one !== active) activate(one);
  });

  node.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !active) return;
    if (event.key === "+" || event.key === "=" || event.key === "-" || event.key === "0") {
      const hadFocus = event.target === active.node;
      const [first] = active.span.parts;
      if (event.key === "0") look(...whole);
      else zoom(event.key === "-" ? 1 / ZOOM : ZOOM, hadFocus ? (first.start + first.end) / 2 : null);
      if (hadFocus) active?.node.focus();
      event.preventDefault();
      return;
    }
    if (event.target !== active.node) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      openSpan(active);
      return;
    }
    const next = walked(event.key);
    if (!next) return;
    event.preventDefault();
    activate(next);
    next.node.focus();
  });

  function walked(key) {
    const row = rows[active.lane];
    const place = row.indexOf(active);
    switch (key) {
      case "ArrowRight":
        return row[place + 1];
      case "ArrowLeft":
        return row[place - 1];
      case "Home":
        return row[0];
      case "End":
        return row.at(-1);
      case "ArrowDown":
      case "ArrowUp": {
        const other = rows[active.lane + (key === "ArrowDown" ? 1 : -1)];
        const { left } = active.span;
        return other?.reduce((best, each) =>
          Math.abs(each.span.left - left) < Math.abs(best.span.left - left) ? each : best,
        );
      }
      default:
        return undefined;
    }
  }

  return {
    node,
    /** Show these lanes from `start` to `end`. Returns how many spans there are. */
    set(given, start, end) {
      lanes = given;
      whole = seen = [start, Math.max(end, start + 1e-3)];
      return draw();
    },
    /** Whether somebody looks at a part of it, or walks along it: then it should stay as it is. */
    isInUse: () => seen[0] !== whole[0] || seen[1] !== whole[1] || node.contains(document.activeElement),
    focus: () => active?.node.focus(),
  };
}

// ---- the last minutes of a room

const READ_AGAIN = 5000; // ms between two readings while it is live, at least

const SPANS = [
  [60, "1 min"],
  [300, "5 min"],
  [900, "15 min"],
];

function timelineSection() {
  const head = sectionHead("Timeline");
  const choice = el("div", { class: "filters", role: "group", "aria-label": "How much" });
  const live = el("button", { type: "button", class: "live" });
  let isLive = true;
  let readAt = 0; // when it was read last
  let end = 0;
  let seconds = 60;
  const timeline = makeTimeline(showSpan, (moment, step = 1) =>
    end - moment < 0.0005 ? "now" : `−${step < 1 ? `${(end - moment).toFixed(Math.ceil(-Math.log10(step)))} s` : duration(end - moment)}`,
  );
  const none = blank("Nothing happened in this time.", "Starts, waits and calls stand here, each as long as it took.");
  const detail = el("div", { class: "block span" });
  const slowest = el("tbody");
  const table = el(
    "table",
    { class: "plain", "aria-label": "The longest calls" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col" }, "What"),
        el("th", { scope: "col", class: "middle" }, "Whose"),
        el("th", { scope: "col", width: "90" }, "At"),
        el("th", { scope: "col", width: "90", class: "number" }, "Took"),
      ),
    ),
    slowest,
  );
  const longest = block("The longest calls and waits", table);
  const abort = new AbortController();
  keyed(
    choice,
    SPANS,
    ([each]) => each,
    ([each, word]) => el("button", { type: "button", on: { click: () => choose(each) } }, word),
  );
  live.addEventListener("click", () => {
    setLive(!isLive);
    if (isLive) read();
  });
  setLive(true);
  none.hidden = longest.hidden = timeline.node.hidden = true;

  function setLive(wanted) {
    isLive = wanted;
    live.replaceChildren(icon(isLive ? "pause" : "play"), isLive ? "Pause" : "Go on");
    setAttribute(live, "title", isLive ? "It is read again every few seconds. Press to keep what is shown." : "Press to read it again every few seconds.");
  }

  function choose(each) {
    seconds = each;
    read();
  }

  async function read() {
    readAt = Date.now();
    SPANS.forEach(([each], place) => setAttribute(choice.children[place], "aria-pressed", String(each === seconds)));
    try {
      const { lanes } = await ask("timeline", { seconds }, abort.signal);
      show(inOrder(lanes));
    } catch (error) {
      if (!abort.signal.aborted && error instanceof Refused) say(error.text, true); // else the stream says it
    }
  }

  function show(lanes) {
    end = now();
    const start = end - seconds;
    const seen = lanes.flatMap((lane) => lane.spans.filter((each) => each.end > start));
    const count = timeline.set(lanes, start, end);
    none.hidden = count > 0;
    timeline.node.hidden = !count;
    const long = seen
      .filter((each) => each.kind === "call" || (each.kind === "wait" && each.end - each.start >= 0.001))
      .sort((one, other) => other.end - other.start - (one.end - one.start))
      .slice(0, 12);
    longest.hidden = !long.length;
    slowest.replaceChildren(
      ...long.map((each) =>
        el(
          "tr",
          {},
          el(
            "td",
            { class: "code" },
            el(
              "button",
              { type: "button", class: "quiet small", on: { click: () => showSpan(each) } },
              named(each.name),
            ),
          ),
          el("td", { class: "middle" }, named(laneInWords(each.lane))),
          el("td", {}, clock(each.start)),
          el("td", { class: "number" }, tookInWords(each)),
        ),
      ),
    );
    setText(head.note, count ? counted(count, "span") : "");
  }

  function showSpan(each) {
    const title = el("h2", { tabindex: "-1" }, el("code", {}, named(each.name)));
    detail.replaceChildren(title, spanFacts(each), each.about.call == null ? "" : el("p", {}, el("a", { href: callAddress(each.about.call) }, "All of this call")));
    title.focus();
  }

  return {
    node: el(
      "div",
      { class: "section" },
      head.node,
      el("section", { class: "block", "aria-label": "How much" }, el("header", {}, choice, live), none),
      timeline.node,
      detail,
      longest,
    ),
    needs: [],
    begin: read,
    end: () => abort.abort(),
    draw() {},
    tick() {
      if (isLive && Date.now() - readAt >= READ_AGAIN && !timeline.isInUse()) read();
    },
  };
}

/** What is known of a span. */
const spanFacts = (each) =>
  factList([
    ["whose", laneInWords(each.lane)],
    ["begun", each.isCut ? `before ${clock(each.start)}` : clock(each.start)],
    ["took", each.kind === "mark" ? null : tookInWords(each)],
    ...Object.entries(each.about),
  ]);

const factList = (facts) =>
  el(
    "dl",
    { class: "facts" },
    facts
      .filter(([, value]) => value != null && value !== "")
      .map(([key, value]) => [el("dt", {}, oneLine(key, 60)), el("dd", {}, oneLine(asText(value), 1000))]),
  );
