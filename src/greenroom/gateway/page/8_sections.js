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
  const noLatency = blank("No call has ended that is known here.", "Each tool’s times stand here from its first call on.");
  const held = el("p", { class: "muted" });
  const since = el("p", { class: "muted" });
  const ended = new Table({
    label: "Ended calls",
    keyOf: (call) => call.call,
    rowClass: (call) => [call.isBad && "failed", route.opened === `calls/${call.call}` && "open"].filter(Boolean).join(" "),
    open: (call) => {
      location.hash = callAddress(call.call);
    },
    empty: ["No call has ended that is known here."],
    columns: [
      textColumn("at", "Ended", (call) => clock(call.at), { width: "80", class: "middle" }),
      {
        key: "tool",
        head: "Tool",
        class: "code",
        order: (call) => call.tool ?? call.method,
        make: () => el("div", { class: "stack" }, el("a", {}, el("bdi")), el("span", { class: "under narrow" })),
        update: (cell, call) => {
          const [link, under] = cell.firstChild.children;
          setAttribute(link, "href", callAddress(call.call));
          setAttribute(link, "title", oneLine(call.tool ?? call.method));
          setText(link.firstChild, oneLine(call.tool ?? call.method, 120));
          setText(under, `${outcomeInWords(call)}, ${clock(call.at)}`);
        },
      },
      textColumn("server", "Server", (call) => oneLine(call.server), {
        class: "middle",
        width: "22%",
        order: (call) => call.server,
        titled: true,
      }),
      textColumn("session", "Session", (call) => oneLine(call.client ?? "the room"), {
        class: "wide muted",
        width: "12%",
      }),
      textColumn("outcome", "Outcome", outcomeInWords, { class: "note middle", width: "120", order: (call) => call.outcome }),
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
      block("Open now", open.node, none, held),
      block("Latency by tool", since, latency.node, noLatency),
      block("Ended last", ended.node),
    ),
    needs: ["calls", "events", "approvals"],
    begin: () => (stop = ended.follow()),
    end: () => stop(),
    leave: (number) => ended.focusKey(Number(number)),
    draw() {
      const { inFlight, queued } = counts();
      setText(head.note, `${number(inFlight)} in flight, ${number(queued)} queued`);
      open.set(room.calls);
      open.node.hidden = !room.calls.length;
      none.hidden = room.calls.length > 0;
      latency.set(room.tools.values());
      latency.node.hidden = !room.tools.size;
      noLatency.hidden = room.tools.size > 0;
      const asked = room.approvals.length;
      held.hidden = !asked;
      held.replaceChildren(`${counted(asked, "more call")} ${asked === 1 ? "waits" : "wait"} for approval. `, el("a", { href: "#/approvals" }, "To answer"));
      since.hidden = !room.tools.size;
      setText(since, `Of the calls that ended since ${clock(countedSince())}.`);
      ended.set(room.ended.slice(0, RECENT));
    },
    tick: () => open.tick(),
  };
}

// ---- sessions and clients

const clientName = (client) =>
  [client.name, client.session ?? `pid ${client.pid}`].filter(Boolean).join(", ");
const silent = (client) => (client.silentSeconds == null ? null : lasted(client, client.silentSeconds));

function sessionsSection() {
  const head = sectionHead("Sessions and clients");
  let text = "";
  const table = new Table({
    label: "Sessions and clients",
    keyOf: (client) => client.session ?? client.pid,
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
  const waitingBlock = block("Waiting now", asks.node);
  const past = el("ol", { class: "moves" });
  const pastBlock = block("Decided last", past);

  function drawAsks() {
    asks.draw();
    none.hidden = asks.count() > 0;
    waitingBlock.hidden = !asks.count();
  }

  return {
    node: el("div", { class: "section" }, head.node, waitingBlock, none, pastBlock),
    needs: ["approvals", "events", "hello", "link"],
    draw() {
      drawAsks();
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
    tick: drawAsks,
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
    needs: ["pins", "projects", "hello", "link"],
    draw() {
      none.hidden = room.pins.length + room.projects.length > 0;
      pinsBlock.hidden = !room.pins.length;
      projectsBlock.hidden = !room.projects.length;
      // What is accepted is what was shown: with another digest it is another element.
      keyed(
        pins,
        room.pins,
        (pin) =>
          JSON.stringify([
            ...[pin.server, pin.kind, pin.name, pin.digest, pin.parts, pin.is, pin.was, pin.flapping],
            ...[mayAct(), leftBlocked.has(pin.digest)],
          ]),
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

const nothingToDo = () => el("p", { class: "muted" }, "Nothing can be done here while the gateway does not answer.");

// Changed definitions that somebody at this page wants to stay blocked, by digest: they need nobody any more. That is
// what they are in any case, so the room need not be told.
const leftBlocked = new Set();

function leaveBlocked(digest) {
  if (!leftBlocked.delete(digest)) leftBlocked.add(digest);
  changed("pins");
}

function makePin(pin) {
  const { server, kind, name, digest } = pin;
  const parts = pin.parts ?? [];
  const accept = !isOwner()
    ? el("p", { class: "muted" }, "To accept it: ", command(typed("accept", word(server), word(name))))
    : !mayAct()
      ? nothingToDo()
      : digest
      ? el(
          "div",
          { class: "buttons" },
          actButton("first", { action: "accept", server, kind, name, digest }, "Accept what is shown"),
          el(
            "button",
            { type: "button", "aria-pressed": String(leftBlocked.has(digest)), on: { click: () => leaveBlocked(digest) } },
            leftBlocked.has(digest) ? "Stays blocked" : "Keep it blocked",
          ),
          actButton("bad", { action: "disable", server }, "Disable ", named(server, 60)),
        )
      : el("p", { class: "muted" }, "It cannot be shown now, so it cannot be accepted here.");
  return el(
    "article",
    { class: "change" },
    el(
      "h3",
      {},
      `The ${oneLine(kind ?? "tool", 30)} `,
      el("code", {}, named(name)),
      " of ",
      serverLink(server),
      " is not as it was",
    ),
    pin.flapping && el("p", { class: "notice warn" }, "It changes again and again."),
    pin.is != null && changedParts(pin.was, pin.is, parts),
    pin.is != null && wholeOf("The whole definition as it is now", pin.is),
    accept,
  );
}

function makeProject(each) {
  const { project, digest } = each;
  const trust =
    isOwner() && !mayAct()
      ? nothingToDo()
      : mayAct() && digest
      ? el("div", { class: "buttons" }, actButton("first", { action: "trust", project, digest }, "Trust what is shown"))
      : el("p", { class: "muted" }, "To trust it, in its folder: ", command(typed("trust")));
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
