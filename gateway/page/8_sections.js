// The other sections. Each is made when it is gone to: `{node, needs, draw, tick?, begin?, end?, search?}`. It is drawn
// only when one of the kinds that it `needs` has changed.

const blank = (title, about) => el("div", { class: "empty" }, el("b", {}, title), about ?? "");
const block = (title, ...children) => el("section", { class: "block", "aria-label": title }, el("h2", {}, title), ...children);

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
      textColumn("tool", "Tool", (call) => oneLine(call.tool ?? call.method), { class: "code", titled: true, order: (call) => call.tool ?? call.method }),
      { key: "server", head: "Server", class: "middle", width: "18%", order: (call) => call.server, make: () => el("a", {}, el("bdi")), update: (cell, call) => { setAttribute(cell.firstChild, "href", serverAddress(call.server)); setText(cell.firstChild.firstChild, oneLine(call.server)); } },
      textColumn("session", "Session", (call) => oneLine(call.client ?? "the room"), { class: "wide muted", width: "16%" }),
      textColumn("outcome", "Outcome", outcomeInWords, { class: "note", width: "120", order: (call) => call.outcome }),
      numberColumn("waited", "Waited", (call) => call.waited ?? 0, { class: "wide", width: "84", said: duration }),
      numberColumn("taken", "Took", (call) => call.taken ?? null, { width: "84", said: duration }),
    ],
  });
  let stop;
  return {
    node: el("div", { class: "section" }, head.node, block("Open now", open.node, none), block("Latency by tool", latency.node, noLatency), block("Ended last", ended.node)),
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
    empty: ["No client is there.", "A client appears here when it has opened a session, or is attached with greenroom attach."],
    columns: [
      textColumn("name", "Client", (client) => oneLine(clientName(client)), { order: clientName, width: "30%", titled: true }),
      textColumn("how", "How", (client) => (client.session != null ? `over HTTP${client.listening ? ", listening" : ""}` : `attached${client.profile ? `, profile ${oneLine(client.profile)}` : ""}${client.expose ? `, sees ${oneLine(client.expose)}` : ""}`), { class: "middle muted" }),
      numberColumn("calls", "Open requests", (client) => client.inFlight, { width: "120" }),
      numberColumn("silent", "Silent for", silent, { width: "96", said: span }),
      numberColumn("ends", "Ends in", (client) => remaining(client, client.endsInSeconds), { width: "90", class: "middle", said: span }),
      numberColumn("since", "Attached for", (client) => (client.seconds == null ? null : lasted(client, client.seconds)), { width: "110", class: "wide", said: span }),
    ],
  });
  const search = searchField("Search clients", (value) => {
    text = value.trim().toLowerCase();
    draw();
  });
  function draw() {
    const all = room.clients;
    setText(head.note, `${counted(all.length, "client")}, ${counted(all.reduce((sum, each) => sum + (each.inFlight ?? 0), 0), "open request")}`);
    search.hidden = all.length < 8;
    table.set(text ? all.filter((each) => clientName(each).toLowerCase().includes(text)) : all);
  }
  let stop;
  return {
    node: el("div", { class: "section" }, head.node, el("section", { class: "block", "aria-label": "Clients" }, el("header", {}, search), table.node)),
    needs: ["clients"],
    search,
    begin: () => (stop = table.follow()),
    end: () => stop(),
    draw,
    tick: () => table.draw(true),
  };
}

// ---- tasks

const TASK = { working: "connecting", input_required: "person", completed: "connected", failed: "failed", cancelled: "disabled" };
const TASK_MARK = { working: "connecting", input_required: "person", completed: "done", failed: "failed", cancelled: "disabled" };

function tasksSection() {
  const head = sectionHead("Tasks");
  const table = new Table({
    label: "Tasks",
    keyOf: (task) => task.task ?? task.id,
    rowClass: (task) => task.status === "failed" && "failed",
    empty: ["No task runs.", "A task is a call that goes on after its answer. Tools that run as tasks make them."],
    columns: [
      textColumn("tool", "Tool", (task) => oneLine(task.tool), { class: "code", order: (task) => task.tool, titled: true, width: "24%" }),
      { key: "status", head: "State", width: "140", order: (task) => task.status, update: (cell, task) => {
        if (cell.said === task.status) return;
        cell.said = task.status;
        const kind = TASK[task.status] ?? "ring";
        cell.replaceChildren(el("span", { class: `state ${kind}` }, mark(TASK_MARK[task.status] ?? "ring", kind), oneLine(String(task.status ?? "").replaceAll("_", " "), 40)));
      } },
      textColumn("message", "Says", (task) => oneLine(task.message), { class: "note middle", titled: true }),
      { key: "server", head: "Server", class: "middle", width: "16%", order: (task) => task.server, make: () => el("a", {}, el("bdi")), update: (cell, task) => { setAttribute(cell.firstChild, "href", serverAddress(task.server)); setText(cell.firstChild.firstChild, oneLine(task.server)); } },
      textColumn("session", "Session", (task) => oneLine(task.session ?? "the room"), { class: "wide muted", width: "14%" }),
      numberColumn("age", "Age", (task) => (task.createdAt == null ? null : now() - task.createdAt), { width: "80", said: span }),
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
  const none = blank("No call waits for approval.", "A call that its server’s policy wants a person to allow stands here, with its arguments, until it is answered.");
  const past = el("ol", { class: "moves" });
  const pastBlock = block("Decided last", past);
  return {
    node: el("div", { class: "section" }, head.node, asks.node, none, pastBlock),
    needs: ["approvals", "events", "hello"],
    draw() {
      asks.draw();
      none.hidden = asks.count() > 0;
      const decided = room.told.filter((each) => each.event === "ApprovalDecision" && each.move !== "asked").slice(0, 50);
      pastBlock.hidden = !decided.length;
      keyed(past, decided, (each) => each.seq, (each) => el("li", {}, el("time", {}, clock(each.at)), el("span", {}, el("code", {}, named(each.tool)), ` ${oneLine(each.move)}${each.client ? `, for ${oneLine(each.client, 60)}` : ""}`)));
    },
    tick: () => asks.draw(),
  };
}

// ---- changes

/** The lines of `was` and `is`, each with whether it is gone, new or the same. */
function difference(was, is) {
  const [a, b] = [was.split("\n").slice(0, 600), is.split("\n").slice(0, 600)];
  const same = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--) same[i][j] = a[i] === b[j] ? same[i + 1][j + 1] + 1 : Math.max(same[i + 1][j], same[i][j + 1]);
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) lines.push(["same", a[i++], j++]);
    else if (i < a.length && (j === b.length || same[i + 1][j] >= same[i][j + 1])) lines.push(["gone", a[i++]]);
    else lines.push(["new", b[j++]]);
  }
  return lines;
}

const asText = (value) => (value == null ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2));
const SIGNS = { gone: "−", new: "+", same: " " };
const SPOKEN = { gone: "gone: ", new: "new: ", same: "" };

function diffOf(was, is) {
  return el("ol", { class: "diff", tabindex: "0", "aria-label": "What changed" }, difference(asText(was), asText(is)).map(([kind, line]) => el("li", { class: kind, "data-sign": SIGNS[kind] }, SPOKEN[kind] && el("span", { class: "unseen" }, SPOKEN[kind]), plain(line, 4000))));
}

function changesSection() {
  const head = sectionHead("Changes");
  const pins = el("div", { class: "wants" });
  const projects = el("div", { class: "wants" });
  const pinsBlock = block("Changed definitions", pins);
  const projectsBlock = block("Projects to trust", projects);
  const none = blank("Nothing has changed.", "If a server shows another definition than the one that you saw first, the difference stands here until you accept it.");
  return {
    node: el("div", { class: "section" }, head.node, none, pinsBlock, projectsBlock),
    needs: ["pins", "projects", "hello"],
    draw() {
      none.hidden = changesWaiting() > 0;
      pinsBlock.hidden = !room.pins.length;
      projectsBlock.hidden = !room.projects.length;
      // What is accepted is what was shown: with another digest it is another element.
      keyed(pins, room.pins, (pin) => JSON.stringify([pin.server, pin.kind, pin.name, pin.digest ?? pin.is, mayAct()]), makePin);
      keyed(projects, room.projects, (each) => JSON.stringify([each, mayAct()].map((one) => (one && one.project ? { ...one, seen: 0 } : one))), makeProject);
    },
  };
}

function makePin(pin) {
  const { server, kind, name, digest } = pin;
  const accept = mayAct()
    ? el("div", { class: "buttons" }, el("button", { type: "button", class: "first", on: { click: (event) => actFrom(event.currentTarget, { action: "accept", server, kind, name, digest }) } }, "Accept what is shown"))
    : el("p", { class: "muted" }, "To accept it: ", command(`greenroom accept ${server} ${name}`));
  return el(
    "article",
    { class: "change" },
    el("h3", {}, `The ${oneLine(kind ?? "tool", 30)} `, el("code", {}, named(name)), " of ", serverLink(server)),
    diffOf(pin.was, pin.is),
    accept,
  );
}

function makeProject(each) {
  const { project, digest } = each;
  const trust = mayAct()
    ? el("div", { class: "buttons" }, el("button", { type: "button", class: "first", on: { click: (event) => actFrom(event.currentTarget, { action: "trust", project, digest }) } }, "Trust what is shown"))
    : el("p", { class: "muted" }, "To trust it, in its folder: ", command("greenroom trust"));
  const servers = each.servers ?? [];
  const isPlain = servers.every((one) => typeof one === "string");
  return el(
    "article",
    { class: "change" },
    el("h3", {}, named(project, 300)),
    el("p", {}, `Its servers would be started as you: `, isPlain && listed(servers, 50)),
    !isPlain && el("pre", { tabindex: "0" }, plain(JSON.stringify(servers, null, 2), 20000)),
    (each.files ?? []).length > 0 && el("p", { class: "muted" }, "From ", named(each.files.join(", "), 600)),
    trust,
  );
}

// ---- the timeline

const SPANS = [[60, "1 min"], [300, "5 min"], [900, "15 min"]];
const LANE = 14; // units of one row of a lane

function timelineSection() {
  const head = sectionHead("Timeline");
  const choice = el("div", { class: "filters", role: "group", "aria-label": "How much" });
  const again = el("button", { type: "button", class: "small" }, "Read again");
  const lanes = el("div", { class: "lanes" });
  const ticks = el("div", { class: "ticks", "aria-hidden": "true" }, el("div"));
  const none = blank("Nothing happened in this time.", "Starts, waits and calls stand here, each as long as it took.");
  const detail = el("div", { class: "block" });
  const slowest = el("tbody");
  const table = el("table", { class: "plain", "aria-label": "The longest" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "What"), el("th", { scope: "col", class: "middle" }, "Server"), el("th", { scope: "col", width: "90" }, "At"), el("th", { scope: "col", width: "90", class: "number" }, "Took"))), slowest);
  const longest = block("The longest", table);
  const abort = new AbortController();
  let seconds = 60;
  let spans = [];
  keyed(choice, SPANS, ([each]) => each, ([each, word]) => el("button", { type: "button", on: { click: () => choose(each) } }, word));
  again.addEventListener("click", read);

  function choose(each) {
    seconds = each;
    read();
  }

  async function read() {
    SPANS.forEach(([each], place) => setAttribute(choice.children[place], "aria-pressed", String(each === seconds)));
    try {
      ({ spans = [] } = await ask("trace", { seconds }, abort.signal));
      show();
    } catch (error) {
      if (!abort.signal.aborted) say(error instanceof Refused ? error.text : "The room does not answer.", true);
    }
  }

  function show() {
    const end = now();
    const start = end - seconds;
    const seen = spans.filter((each) => (each.end ?? end) > start).slice(-4000);
    const byServer = new Map();
    for (const each of seen) forServer(byServer, each.server ?? "", () => []).push(each);
    none.hidden = seen.length > 0;
    lanes.hidden = ticks.hidden = longest.hidden = !seen.length;
    lanes.replaceChildren(...[...byServer].sort(([a], [b]) => a.localeCompare(b)).map(([name, own]) => laneOf(name, own, start, end)));
    ticks.firstChild.replaceChildren(...[1, 0.75, 0.5, 0.25, 0].map((share) => el("span", {}, share ? `−${span(share * seconds)}` : "now")));
    const long = seen.map((each) => [each, (each.end ?? end) - each.start]).sort(([, a], [, b]) => b - a).slice(0, 12);
    slowest.replaceChildren(...long.map(([each, took]) => el("tr", {}, el("td", { class: "code" }, el("button", { type: "button", class: "quiet small", on: { click: () => showSpan(each) } }, named(each.name))), el("td", { class: "middle" }, each.server && serverLink(each.server)), el("td", {}, clock(each.start)), el("td", { class: "number" }, duration(took)))));
    setText(head.note, seen.length ? counted(seen.length, "span") : "");
  }

  function laneOf(name, own, start, end) {
    const rows = []; // the end of each row's last span
    const width = 1000;
    const at = (moment) => Math.max(0, (moment - start) / (end - start)) * width;
    const placed = own
      .sort((one, other) => one.start - other.start)
      .map((each) => {
        const [left, right] = [at(each.start), Math.max(at(each.start) + 1.5, at(each.end ?? end))];
        let row = rows.findIndex((taken) => taken <= left);
        if (row < 0) row = rows.length < 8 ? rows.push(0) - 1 : 7;
        rows[row] = right;
        return [each, left, right, row];
      });
    const height = Math.max(1, rows.length) * LANE + 8;
    const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": counted(own.length, "span") });
    drawn.style.setProperty("height", `${height}px`);
    for (const [each, left, right, row] of placed) {
      const kind = /error|fail/.test(each.state ?? "") ? "error" : /wait|queue|slot|permit|gate/.test(each.name) ? "wait" : null;
      const rect = svg("rect", { x: left.toFixed(1), y: row * LANE + 5, width: (right - left).toFixed(1), height: LANE - 4, class: kind });
      rect.append(svg("title", {}, document.createTextNode(`${oneLine(each.name)}, ${duration((each.end ?? end) - each.start)}`)));
      rect.addEventListener("click", () => showSpan(each));
      drawn.append(rect);
    }
    return el("div", { class: "lane" }, el("span", { class: "name" }, name ? serverLink(name) : "the room"), drawn);
  }

  function showSpan(each) {
    const facts = [["server", each.server], ["begun", clock(each.start)], ["took", each.end == null ? "it goes on" : duration(each.end - each.start)], ["state", each.state], ...Object.entries(each.attributes ?? {})].filter(([, value]) => value != null && value !== "");
    const title = el("h2", { tabindex: "-1" }, el("code", {}, named(each.name)));
    detail.replaceChildren(title, el("dl", { class: "facts" }, facts.map(([key, value]) => [el("dt", {}, oneLine(key, 60)), el("dd", {}, oneLine(asText(value), 1000))])));
    title.focus();
  }

  return {
    node: el("div", { class: "section" }, head.node, el("section", { class: "block", "aria-label": "Spans by server" }, el("header", {}, choice, again), lanes, ticks, none), detail, longest),
    needs: [],
    begin: read,
    end: () => abort.abort(),
    draw() {},
  };
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
      { key: "state", head: "State", width: "120", order: (host) => host.state, update: (cell, host) => {
        if (cell.said === host.state) return;
        cell.said = host.state;
        const kind = host.state === "serving" ? "connected" : "draining";
        cell.replaceChildren(el("span", { class: `state ${kind}` }, mark(kind, kind), oneLine(host.state)));
      } },
      textColumn("holds", "Holds", (host) => listed(host.holds ?? [], 8), { titled: true }),
      textColumn("url", "Door", (host) => oneLine(host.url), { class: "middle code", width: "22%" }),
      textColumn("labels", "Labels", (host) => Object.entries(host.labels ?? {}).map(([key, value]) => `${oneLine(key, 40)}=${oneLine(value, 40)}`).join(" "), { class: "wide muted", width: "14%" }),
      textColumn("resources", "Resources", (host) => Object.entries(host.resources ?? {}).map(([key, value]) => `${oneLine(key, 40)} ${number(value)}`).join(", "), { class: "wide muted", width: "16%" }),
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
      setText(head.note, hosts.length ? `${number(hosts.filter((host) => host.state === "serving").length)} of ${number(hosts.length)} serving` : "");
      table.set(hosts);
    },
  };
}
