// The other sections. Each is made when it is gone to: `{node, needs, draw, tick?, begin?, end?, search?}`. It is drawn
// only when one of the kinds that it `needs` has changed.

const blank = (title, about) => el("div", { class: "empty" }, el("b", {}, title), about ?? "");
const block = (title, ...children) =>
  el("section", { class: "block", "aria-label": title }, el("h2", {}, title), ...children);

// ---- calls

function callsSection() {
  const head = sectionHead("Calls");
  const open = callsTable(true);
  const none = blank("No call is open.", "Calls appear here while they wait or run.");
  const latency = latencyTable();
  const noLatency = blank("No call has ended yet.", "Each tool’s times stand here from its first call on.");
  const ended = new Table({
    label: "Ended calls",
    keyOf: (call) => call.seq,
    rowClass: (call) => call.isBad && "failed",
    empty: ["No call has ended yet."],
    columns: [
      textColumn("at", "Ended", (call) => clock(call.at), { width: "80" }),
      textColumn("tool", "Tool", (call) => oneLine(call.tool ?? call.method), {
        class: "code",
        titled: true,
        order: (call) => call.tool ?? call.method,
      }),
      {
        key: "server",
        head: "Server",
        class: "middle",
        width: "18%",
        order: (call) => call.server,
        make: () => el("a", {}, el("bdi")),
        update: (cell, call) => {
          setAttribute(cell.firstChild, "href", serverAddress(call.server));
          setText(cell.firstChild.firstChild, oneLine(call.server));
        },
      },
      textColumn("session", "Session", (call) => oneLine(call.client ?? "the room"), {
        class: "wide muted",
        width: "16%",
      }),
      textColumn("outcome", "Outcome", outcomeInWords, { class: "note", width: "120", order: (call) => call.outcome }),
      numberColumn("waited", "Waited", (call) => call.waited ?? 0, { class: "wide", width: "84", said: duration }),
      numberColumn("taken", "Took", (call) => call.taken ?? null, { width: "84", said: duration }),
    ],
  });
  let stop;
  return {
    node: el(
      "div",
      { class: "section" },
      head.node,
      block("Open now", open.node, none),
      block("Latency by tool", latency.node, noLatency),
      block("Ended last", ended.node),
    ),
    needs: ["calls", "events"],
    begin: () => (stop = ended.follow()),
    end: () => stop(),
    draw() {
      const { inFlight, queued } = counts();
      setText(head.note, `${number(inFlight)} in flight, ${number(queued)} queued`);
      open.set(room.calls);
      open.node.hidden = !room.calls.length;
      none.hidden = room.calls.length > 0;
      latency.set(room.tools.values());
      latency.node.hidden = !room.tools.size;
      noLatency.hidden = room.tools.size > 0;
      ended.set(room.ended.slice(0, RECENT));
    },
    tick: () => open.tick(),
  };
}

// ---- sessions and clients

const clientName = (client) => client.session ?? `attached, pid ${client.pid}`;
const silent = (client) => (client.silentSeconds == null ? null : lasted(client, client.silentSeconds));

function sessionsSection() {
  const head = sectionHead("Sessions and clients");
  let text = "";
  const table = new Table({
    label: "Sessions and clients",
    keyOf: clientName,
    empty: [
      "No client is there.",
      "A client appears here when it has opened a session, or is attached with greenroom attach.",
    ],
    columns: [
      textColumn("name", "Client", (client) => oneLine(clientName(client)), {
        order: clientName,
        width: "30%",
        titled: true,
      }),
      textColumn(
        "how",
        "How",
        (client) =>
          client.session != null
            ? `over HTTP${client.listening ? ", listening" : ""}`
            : `attached${client.profile ? `, profile ${oneLine(client.profile)}` : ""}${client.expose ? `, sees ${oneLine(client.expose)}` : ""}`,
        { class: "middle muted" },
      ),
      numberColumn("calls", "Open requests", (client) => client.inFlight, { width: "120" }),
      numberColumn("silent", "Silent for", silent, { width: "96", said: span }),
      numberColumn("ends", "Ends in", (client) => remaining(client, client.endsInSeconds), {
        width: "90",
        class: "middle",
        said: span,
      }),
      numberColumn(
        "since",
        "Attached for",
        (client) => (client.seconds == null ? null : lasted(client, client.seconds)),
        { width: "110", class: "wide", said: span },
      ),
    ],
  });
  const search = searchField("Search clients", (value) => {
    text = value.trim().toLowerCase();
    draw();
  });
  function draw() {
    const all = room.clients;
    setText(
      head.note,
      `${counted(all.length, "client")}, ${counted(
        all.reduce((sum, each) => sum + (each.inFlight ?? 0), 0),
        "open request",
      )}`,
    );
    search.hidden = all.length < 8;
    table.set(text ? all.filter((each) => clientName(each).toLowerCase().includes(text)) : all);
  }
  let stop;
  return {
    node: el(
      "div",
      { class: "section" },
      head.node,
      el("section", { class: "block", "aria-label": "Clients" }, el("header", {}, search), table.node),
    ),
    needs: ["clients"],
    search,
    begin: () => (stop = table.follow()),
    end: () => stop(),
    draw,
    tick: () => table.draw(true),
  };
}

// ---- tasks

const TASK = {
  working: "connecting",
  input_required: "person",
  completed: "connected",
  failed: "failed",
  cancelled: "disabled",
};
const TASK_MARK = {
  working: "connecting",
  input_required: "person",
  completed: "done",
  failed: "failed",
  cancelled: "disabled",
};

/** How long ago a moment of the wall clock was: in seconds since 1970, or as ISO 8601 has it. */
const age = (at) => (at == null ? null : wallNow() - (typeof at === "number" ? at : Date.parse(at) / 1000));

const aboutTask = (task) =>
  oneLine([task.tool, task.message, task.isElsewhere && "held by another gateway"].filter(Boolean).join(": "));

function tasksSection() {
  const head = sectionHead("Tasks");
  const table = new Table({
    label: "Tasks",
    keyOf: (task) => task.task ?? task.id,
    rowClass: (task) => task.status === "failed" && "failed",
    empty: ["No task runs.", "A task is a call that goes on after its answer. Tools that run as tasks make them."],
    columns: [
      textColumn("task", "Task", (task) => oneLine(task.task), {
        class: "code",
        order: (task) => task.task,
        titled: true,
        width: "24%",
      }),
      {
        key: "status",
        head: "State",
        width: "150",
        order: (task) => task.status,
        update: (cell, task) => {
          if (cell.said === task.status) return;
          cell.said = task.status;
          const kind = TASK[task.status] ?? "ring";
          cell.replaceChildren(
            el(
              "span",
              { class: `state ${kind}` },
              mark(TASK_MARK[task.status] ?? "ring", kind),
              oneLine(String(task.status ?? "").replaceAll("_", " "), 40),
            ),
          );
        },
      },
      textColumn("about", "About", aboutTask, { class: "note middle", titled: true }),
      numberColumn("age", "Age", (task) => age(task.createdAt), { width: "90", said: span }),
      numberColumn("changed", "Last change", (task) => age(task.changedAt), {
        width: "110",
        class: "middle",
        said: (ago) => `${span(ago)} ago`,
      }),
    ],
  });
  let stop;
  return {
    node: el("div", { class: "section" }, head.node, table.node),
    needs: ["tasks"],
    begin: () => (stop = table.follow()),
    end: () => stop(),
    draw() {
      setText(head.note, room.tasks.length ? counted(room.tasks.length, "task") : "");
      table.set(room.tasks);
    },
    tick: () => table.draw(true),
  };
}

// ---- approvals

function approvalsSection() {
  const head = sectionHead("Approvals");
  const asks = asksList();
  const none = blank(
    "No call waits for approval.",
    "A call that its server’s policy wants a person to allow stands here, with its arguments, until it is answered.",
  );
  const past = el("ol", { class: "moves" });
  const pastBlock = block("Decided last", past);
  return {
    node: el("div", { class: "section" }, head.node, asks.node, none, pastBlock),
    needs: ["approvals", "events", "hello"],
    draw() {
      asks.draw();
      none.hidden = asks.count() > 0;
      const decided = room.told
        .filter((each) => each.event === "ApprovalDecision" && each.move !== "asked")
        .slice(0, 50);
      pastBlock.hidden = !decided.length;
      keyed(
        past,
        decided,
        (each) => each.seq,
        (each) =>
          el(
            "li",
            {},
            el("time", {}, clock(each.at)),
            el(
              "span",
              {},
              el("code", {}, named(each.tool)),
              ` ${oneLine(each.move)}${each.client ? `, for ${oneLine(each.client, 60)}` : ""}`,
            ),
          ),
      );
    },
    tick: () => asks.draw(),
  };
}

// ---- changes

const asText = (value) => (value == null ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2));

function changesSection() {
  const head = sectionHead("Changes");
  const pins = el("div", { class: "wants" });
  const projects = el("div", { class: "wants" });
  const pinsBlock = block("Changed definitions", pins);
  const projectsBlock = block("Projects to trust", projects);
  const none = blank(
    "Nothing has changed.",
    "If a server shows another definition than the one that you saw first, the difference stands here until you accept it.",
  );
  return {
    node: el("div", { class: "section" }, head.node, none, pinsBlock, projectsBlock),
    needs: ["pins", "projects", "hello"],
    draw() {
      none.hidden = changesWaiting() > 0;
      pinsBlock.hidden = !room.pins.length;
      projectsBlock.hidden = !room.projects.length;
      // What is accepted is what was shown: with another digest it is another element.
      keyed(
        pins,
        room.pins,
        (pin) =>
          JSON.stringify([pin.server, pin.kind, pin.name, pin.digest, pin.parts, pin.is, pin.was, pin.flapping, mayAct()]),
        makePin,
      );
      keyed(
        projects,
        room.projects,
        (each) => JSON.stringify([each.project, each.digest, each.servers, each.matters, mayAct()]),
        makeProject,
      );
    },
  };
}

function makePin(pin) {
  const { server, kind, name, digest } = pin;
  const parts = pin.parts ?? [];
  const accept = !mayAct()
    ? el("p", { class: "muted" }, "To accept it: ", command(`greenroom accept ${word(server)} ${word(name)}`))
    : digest
      ? el(
          "div",
          { class: "buttons" },
          el(
            "button",
            {
              type: "button",
              class: "first",
              on: { click: (event) => actFrom(event.currentTarget, { action: "accept", server, kind, name, digest }) },
            },
            "Accept what is shown",
          ),
        )
      : el("p", { class: "muted" }, "It cannot be shown now, so it cannot be accepted here.");
  return el(
    "article",
    { class: "change" },
    el("h3", {}, `The ${oneLine(kind ?? "tool", 30)} `, el("code", {}, named(name)), " of ", serverLink(server)),
    parts.length > 0 &&
      el(
        "p",
        {},
        "What has changed: ",
        parts.map((each, place) => [place > 0 && ", ", el("b", {}, named(each))]),
      ),
    pin.flapping && el("p", { class: "notice warn" }, "It changes again and again."),
    pin.is != null &&
      el(
        "div",
        { class: "block" },
        el("p", { class: "muted" }, pin.was == null ? "What it was is not known any more. It is now:" : "What it was, and what it is now:"),
        changedParts(pin.was, pin.is, parts),
      ),
    accept,
  );
}

const SIGNS = { new: ["+", "now: "], old: ["−", "before: "], mark: ["•", "changed: "], same: [" ", ""] };

/** A definition line by line: what went and what came, or, if nobody knows how it was, which parts are not the same. */
function changedParts(was, is, parts) {
  const lines = [];
  for (const key of new Set([...Object.keys(was ?? {}), ...Object.keys(is)])) {
    if (was == null) {
      const kind = parts.some((each) => each.split(/[ .:]/)[0] === key) ? "mark" : "same";
      linesOf(key, is[key]).forEach((line) => lines.push([kind, line]));
    } else {
      lines.push(...difference(linesOf(key, was[key]), linesOf(key, is[key])));
    }
  }
  return el(
    "ol",
    { class: "diff", tabindex: "0", "aria-label": "The definition" },
    lines.map(([kind, line]) => {
      const [sign, said] = SIGNS[kind];
      return el("li", { class: kind, "data-sign": sign }, said && el("span", { class: "unseen" }, said), plain(line, 4000));
    }),
  );
}

function linesOf(key, value) {
  if (value == null) return [];
  return `${key}: ${typeof value === "string" ? value : JSON.stringify(value, null, 2)}`.split("\n");
}

/** What lies between the equal lines at the beginning and at the end counts as changed. */
function difference(was, is) {
  const shorter = Math.min(was.length, is.length);
  let first = 0;
  while (first < shorter && was[first] === is[first]) first += 1;
  let last = 0;
  while (last < shorter - first && was[was.length - 1 - last] === is[is.length - 1 - last]) last += 1;
  return [
    ...is.slice(0, first).map((line) => ["same", line]),
    ...was.slice(first, was.length - last).map((line) => ["old", line]),
    ...is.slice(first, is.length - last).map((line) => ["new", line]),
    ...is.slice(is.length - last).map((line) => ["same", line]),
  ];
}

function makeProject(each) {
  const { project, digest } = each;
  const trust =
    mayAct() && digest
      ? el(
          "div",
          { class: "buttons" },
          el(
            "button",
            {
              type: "button",
              class: "first",
              on: { click: (event) => actFrom(event.currentTarget, { action: "trust", project, digest }) },
            },
            "Trust what is shown",
          ),
        )
      : el("p", { class: "muted" }, "To trust it, in its folder: ", command("greenroom trust"));
  const servers = (each.servers ?? []).map((one) => (typeof one === "string" ? one : (one?.name ?? "")));
  return el(
    "article",
    { class: "change" },
    el("h3", {}, named(project, 300)),
    each.directory && el("p", { class: "muted" }, "For the folder ", named(each.directory, 300)),
    servers.length > 0 && el("p", {}, `Its servers would be started as you: ${listed(servers, 50)}`),
    each.matters != null && el("pre", { tabindex: "0" }, plain(asText(each.matters), 20000)),
    trust,
  );
}

// ---- the timeline

const SPANS = [
  [60, "1 min"],
  [300, "5 min"],
  [900, "15 min"],
];
const LANE = 13; // units of one row of a lane
const ROWS = 6; // of a lane, at most
const GROUPED = [
  ["clients", "Calls, by client"],
  ["servers", "Servers"],
];

/** The lanes of a Chrome trace: `[{group, name, spans: [{name, kind, start, end, about}]}]`, moments in seconds. */
function lanesOf(events) {
  const groups = new Map();
  const lanes = new Map();
  const laneOf = (event) =>
    forServer(lanes, `${event.pid} ${event.tid}`, () => ({ pid: event.pid, name: "", spans: [] }));
  for (const event of events) {
    if (event.ph === "M" && event.name === "process_name") groups.set(event.pid, event.args.name);
    else if (event.ph === "M" && event.name === "thread_name") laneOf(event).name = event.args.name;
    else if (event.ph === "X" || event.ph === "i") {
      const start = event.ts / 1e6;
      laneOf(event).spans.push({
        name: event.name,
        kind: event.ph === "i" ? "mark" : event.cat,
        start,
        end: start + (event.dur ?? 0) / 1e6,
        about: event.args ?? {},
      });
    }
  }
  return [...lanes.values()].map((lane) => ({ ...lane, group: groups.get(lane.pid) ?? "" }));
}

function timelineSection() {
  const head = sectionHead("Timeline");
  const choice = el("div", { class: "filters", role: "group", "aria-label": "How much" });
  const again = el("button", { type: "button", class: "small" }, "Read again");
  const groups = GROUPED.map(([group, title]) => {
    const lanes = el("div", { class: "lanes" });
    return { group, lanes, node: block(title, lanes) };
  });
  const ticks = el("div", { class: "ticks", "aria-hidden": "true" }, el("div"));
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
  let seconds = 60;
  let lanes = [];
  keyed(
    choice,
    SPANS,
    ([each]) => each,
    ([each, word]) => el("button", { type: "button", on: { click: () => choose(each) } }, word),
  );
  again.addEventListener("click", read);
  none.hidden = longest.hidden = true;
  for (const each of groups) each.node.hidden = true;

  function choose(each) {
    seconds = each;
    read();
  }

  async function read() {
    SPANS.forEach(([each], place) => setAttribute(choice.children[place], "aria-pressed", String(each === seconds)));
    try {
      const { traceEvents = [] } = await ask("trace", { seconds }, abort.signal);
      lanes = lanesOf(traceEvents);
      show();
    } catch (error) {
      if (!abort.signal.aborted) say(error instanceof Refused ? error.text : "The room does not answer.", true);
    }
  }

  function show() {
    const end = now();
    const start = end - seconds;
    const seen = lanes
      .map((lane) => ({ ...lane, spans: lane.spans.filter((each) => each.end > start).slice(-1000) }))
      .filter((lane) => lane.spans.length);
    for (const { group, lanes: place, node } of groups) {
      const own = seen.filter((lane) => lane.group === group).slice(0, 200);
      own.sort((one, other) => one.name.localeCompare(other.name));
      node.hidden = !own.length;
      place.replaceChildren(...own.map((lane) => drawLane(lane, start, end)));
    }
    const all = seen.flatMap((lane) => lane.spans.map((each) => ({ ...each, lane: lane.name })));
    none.hidden = all.length > 0;
    ticks.hidden = !all.length;
    ticks.firstChild.replaceChildren(
      ...[1, 0.75, 0.5, 0.25, 0].map((share) => el("span", {}, share ? `−${span(share * seconds)}` : "now")),
    );
    const long = all
      .filter((each) => each.kind === "call" || each.kind === "wait")
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
          el("td", { class: "middle" }, named(each.lane)),
          el("td", {}, clock(each.start)),
          el("td", { class: "number" }, duration(each.end - each.start)),
        ),
      ),
    );
    setText(head.note, all.length ? counted(all.length, "span") : "");
  }

  function drawLane(lane, start, end) {
    const rows = []; // the end of each row's last span
    const width = 1000;
    const at = (moment) => ((Math.min(end, Math.max(start, moment)) - start) / (end - start)) * width;
    const placed = lane.spans
      .filter((each) => each.kind !== "wait" || at(each.end) - at(each.start) >= 1)
      .sort((one, other) => one.start - other.start || other.end - one.end)
      .map((each) => {
        const left = at(each.start);
        const right = Math.max(left + 1.5, at(each.end));
        if (each.kind === "mark") return [each, left, left + 2, 0]; // over what goes on there
        let row = rows.findIndex((taken) => taken <= left + 0.5);
        if (row < 0) row = rows.length < ROWS ? rows.push(0) - 1 : ROWS - 1;
        rows[row] = right;
        return [each, left, right, row];
      });
    const height = Math.max(1, rows.length) * LANE + 8;
    const drawn = svg("svg", {
      viewBox: `0 0 ${width} ${height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `${counted(lane.spans.length, "span")} of ${oneLine(lane.name, 60)}`,
    });
    drawn.style.setProperty("height", `${height}px`);
    for (const [each, left, right, row] of placed) {
      const rect = svg("rect", {
        x: left.toFixed(1),
        y: row * LANE + 5,
        width: (right - left).toFixed(1),
        height: LANE - 3,
        class: spanKind(each),
      });
      rect.append(
        svg(
          "title",
          {},
          document.createTextNode(
            `${oneLine(each.name)}${each.kind === "mark" ? "" : `, ${duration(each.end - each.start)}`}`,
          ),
        ),
      );
      rect.addEventListener("click", () => showSpan({ ...each, lane: lane.name }));
      drawn.append(rect);
    }
    return el(
      "div",
      { class: "lane" },
      el(
        "span",
        { class: "name", title: oneLine(lane.name) },
        room.servers.has(lane.name) ? serverLink(lane.name) : named(lane.name),
      ),
      drawn,
    );
  }

  function showSpan(each) {
    const facts = [
      ["whose", each.lane],
      ["begun", clock(each.start)],
      ["took", each.kind === "mark" ? null : duration(each.end - each.start)],
      ...Object.entries(each.about),
    ].filter(([, value]) => value != null && value !== "");
    const title = el("h2", { tabindex: "-1" }, el("code", {}, named(each.name)));
    detail.replaceChildren(
      title,
      el(
        "dl",
        { class: "facts" },
        facts.map(([key, value]) => [el("dt", {}, oneLine(key, 60)), el("dd", {}, oneLine(asText(value), 1000))]),
      ),
    );
    title.focus();
  }

  return {
    node: el(
      "div",
      { class: "section" },
      head.node,
      el("section", { class: "block", "aria-label": "How much" }, el("header", {}, choice, again), none),
      groups.map((each) => each.node),
      ticks,
      detail,
      longest,
    ),
    needs: [],
    begin: read,
    end: () => abort.abort(),
    draw() {},
  };
}

/** The colour of a span: a failure, a wait, a state, a mark, or a call that went well. */
function spanKind({ kind, name, about }) {
  if (
    about.isError === true ||
    (about.outcome &&
      !["result", "cancelled", "sent again"].includes(about.outcome) &&
      !about.outcome.startsWith("open")) ||
    ["failed to connect", "lost", "failed: bug"].includes(about.cause)
  )
    return "error";
  if (kind === "wait" || name === "connecting" || name === "draining") return "wait";
  if (kind === "state") return "state";
  return kind === "mark" ? "told" : "call";
}

// ---- hosts

function hostsSection() {
  const head = sectionHead("Hosts");
  const table = new Table({
    label: "Hosts",
    keyOf: (host) => host.name,
    empty: ["This room has no other hosts.", "Hosts of a cluster stand here."],
    columns: [
      textColumn("name", "Host", (host) => oneLine(host.name), { order: (host) => host.name, width: "18%" }),
      {
        key: "state",
        head: "State",
        width: "120",
        order: (host) => host.state,
        update: (cell, host) => {
          if (cell.said === host.state) return;
          cell.said = host.state;
          const kind = host.state === "serving" ? "connected" : "draining";
          cell.replaceChildren(el("span", { class: `state ${kind}` }, mark(kind, kind), oneLine(host.state)));
        },
      },
      textColumn("holds", "Holds", (host) => listed(host.holds ?? [], 8), { titled: true }),
      textColumn("url", "Door", (host) => oneLine(host.url), { class: "middle code", width: "22%" }),
      textColumn(
        "labels",
        "Labels",
        (host) =>
          Object.entries(host.labels ?? {})
            .map(([key, value]) => `${oneLine(key, 40)}=${oneLine(value, 40)}`)
            .join(" "),
        { class: "wide muted", width: "14%" },
      ),
      textColumn(
        "resources",
        "Resources",
        (host) =>
          Object.entries(host.resources ?? {})
            .map(([key, value]) => `${oneLine(key, 40)} ${number(value)}`)
            .join(", "),
        { class: "wide muted", width: "16%" },
      ),
    ],
  });
  let stop;
  return {
    node: el("div", { class: "section" }, head.node, table.node),
    needs: ["hosts"],
    begin: () => (stop = table.follow()),
    end: () => stop(),
    draw() {
      const hosts = room.hosts ?? [];
      setText(
        head.note,
        hosts.length
          ? `${number(hosts.filter((host) => host.state === "serving").length)} of ${number(hosts.length)} serving`
          : "",
      );
      table.set(hosts);
    },
  };
}
