// The overview: a line of counts, what needs a person, and the table of servers.

const MOST_ASKS = 6; // calls that wait for approval and are shown before the table
const MOST_WANTS = 4; // failed servers, likewise
const toldAbove = new Set(); // those of them whose reasons stand there, so that the table need not say them again

function overviewSection() {
  const head = sectionHead("Overview");
  const line = figures();
  const wants = wantsBlock();
  const servers = serversBlock();
  const replay = el("p", { class: "notice" });
  const stopFollowing = { end: null };

  function drawLine() {
    const { inFlight, queued, connected, inService, failed } = counts();
    replay.hidden = !room.hello?.replay;
    if (room.hello?.replay) setText(replay, replayInWords(room.hello.replay));
    const minute = room.minute.read(now()).reduce((sum, [good, bad]) => sum + good + bad, 0);
    const held = (room.held ?? []).reduce((sum, each) => sum + each.calls, 0);
    const waits = room.approvals.length + changesWaiting() + logins().length + failed + (room.held ?? []).length;
    line.set([
      ["connected", number(connected), null, `of ${number(inService)}`],
      ["failed", number(failed), failed && "failed"],
      ["need you", number(waits), waits && "person"],
      ["calls in flight", number(inFlight)],
      ["calls queued", number(queued), held && "failed", held ? `${number(held)} held up` : null],
      [callsCounted(), number(minute)],
      ["clients", number(room.clients.length)],
      ...slotsInUse(),
    ]);
  }

  return {
    node: el("div", { class: "section" }, head.node, replay, wants.node, line.node, servers.node),
    needs: ["servers", "approvals", "pins", "projects", "clients", "pool", "events", "audit", "held", "hello", "link"],
    begin() {
      stopFollowing.end = servers.table.follow();
    },
    end() {
      stopFollowing.end();
    },
    search: servers.search,
    draw(kinds) {
      drawLine();
      wants.draw();
      servers.draw(kinds);
    },
    tick() {
      drawLine();
      wants.draw();
      servers.tick();
    },
    leave(name) {
      return servers.table.focusKey(name);
    },
  };
}

/** Places for connections (`maxConnections`). Servers that all share and children of sessions have places of their own. */
function slotsInUse() {
  const { held, most, sessionsHeld, sessionsMost } = room.pool ?? {};
  if (!most || room.hosts != null) return [];
  const figure = (label, taken, all) => [label, number(taken), null, `of ${number(all)} at most`];
  return [
    figure("connections", held, most),
    ...(sessionsHeld ? [figure("sessions’ connections", sessionsHeld, sessionsMost)] : []),
  ];
}

/** Since when calls are counted here. */
const countedSince = () =>
  Math.max(room.countedSince ?? now(), (room.hello?.gateway?.startedAt ?? 0) - wallAhead);

const callsCounted = () =>
  now() - countedSince() < 60 ? `calls since ${clock(countedSince())}` : "calls, last minute";

const logins = () => [...room.servers.values()].filter((row) => stateOf(row) === "needs-auth");

// ---- what needs a person

function wantsBlock() {
  const asks = asksList(MOST_ASKS);
  const list = el("ul", { class: "list-of-wants" });
  const calm = el("p", { class: "calm" }, mark("done", "connected"), el("span"));
  const title = el("h2", {}, "Needs you");
  const node = el("section", { class: "block", "aria-label": "Needs you" }, title, asks.node, list, calm);
  return {
    node,
    draw() {
      asks.draw();
      const all = wants();
      keyed(list, all, (want) => want.key, makeWant, updateWant);
      const none = !all.length && !asks.count();
      calm.hidden = !none;
      title.hidden = none;
      list.hidden = !all.length;
      setText(calm.lastChild, "Nothing waits for you.");
    },
  };
}

/** What needs a person beside approvals: the decisive first, then what has failed. */
function wants() {
  const found = [];
  const link = (text, href) => el("a", { href }, text);
  for (const one of room.held ?? [])
    found.push({
      key: `held ${one.step}`,
      mark: "failed",
      what: `${one.what} (${listed(one.servers)})`,
      why: one.holders ? `Held by ${listed(one.by)}${one.holders > 3 ? `: ${number(one.holders)} in all` : ""}.` : "",
      make: () => el("span", {}, oneLine(one.step, 200)),
    });
  if (room.approvals.length > MOST_ASKS)
    found.push({
      key: "asks",
      mark: "person",
      what: `${number(room.approvals.length - MOST_ASKS)} more calls wait for approval`,
      why: "",
      isBrief: true,
      make: () => link("See all", "#/approvals"),
    });
  if (room.audit?.failing)
    found.push({
      key: "audit",
      mark: "failed",
      what: "The audit file cannot be written",
      why: `${oneLine(room.audit.file)}: ${counted(room.audit.missed, "call")} could not be written.`,
      make: () => "",
    });
  const pins = pinsWaiting();
  if (pins.length) {
    const names = [...new Set(pins.map((pin) => pin.server))];
    found.push({
      key: "pins",
      mark: "person",
      what: `${listed(names)} ${names.length === 1 ? "has" : "have"} changed ${counted(pins.length, "definition")}`,
      why: pins.length === 1 ? "It is blocked until you accept it." : "They are blocked until you accept them.",
      isBrief: true,
      make: () => link("See what changed", "#/changes"),
    });
  }
  for (const project of room.projects)
    found.push({
      key: `project ${project.project}`,
      mark: "person",
      what: `The project ${oneLine(project.project)} is not trusted`,
      why: `Its file names ${counted(project.servers?.length ?? 0, "server")}, which would be started as you.`,
      isBrief: true,
      make: () => link("Look at it", "#/changes"),
    });
  for (const row of logins())
    found.push({
      key: `login ${row.name}`,
      mark: "person",
      what: `${oneLine(row.name, 80)} waits for a login`,
      why: oneLine(row.failure ?? "Its tools are offered when you have logged in."),
      make: () => command(typed("auth", word(row.name))),
    });
  const failed = [...room.servers.values()].filter((row) => STATES[stateOf(row)].group === "failed" && !row.disabled);
  toldAbove.clear();
  for (const row of failed.slice(0, MOST_WANTS)) {
    toldAbove.add(row.name);
    found.push({
      key: `failed ${row.name}`,
      mark: "failed",
      what: `${oneLine(row.name, 80)} ${HAPPENED[stateOf(row)]}`,
      why: reason(row),
      isBrief: true,
      make: () => link("What to do", serverAddress(row.name)),
    });
  }
  if (failed.length > MOST_WANTS)
    found.push({
      key: "more",
      mark: "failed",
      what: `${number(failed.length - MOST_WANTS)} more have failed`,
      why: "",
      isBrief: true,
      make: () =>
        el("button", { class: "small", type: "button", on: { click: () => filterServers("failed") } }, "Show them"),
    });
  return found;
}

function listed(names, most = 3) {
  const first = names.slice(0, most).map((name) => oneLine(name, 60));
  const more = names.length - first.length;
  return more > 0 ? `${first.join(", ")} and ${number(more)} more` : first.join(", ");
}

function makeWant(want) {
  return el(
    "li",
    { class: want.isBrief ? "want brief" : "want" },
    mark(want.mark, want.mark),
    el("p", { class: "what" }),
    el("p", { class: "why" }),
    el("div", { class: "do" }, want.make()),
  );
}

function updateWant(node, want) {
  const [, what, why] = node.children;
  setText(what, want.what);
  setText(why, want.why);
}

// ---- approvals
//
// An answer must never go to another call than the one that was read. So a call that has gone keeps its place for a
// while, and nothing moves under a pointer that is about to press; a new call's buttons wake after a moment.

const KEPT = 6; // seconds for which a call that has gone keeps its place
const ASLEEP = 700; // ms
const DONE = {
  once: "Allowed, this once.",
  session: "Allowed for its session, with these arguments.",
  deny: "Refused.",
};

/** The calls that wait. `most`: how many are shown, the oldest first. */
function asksList(most = Infinity) {
  const node = el("div", { class: "asks" });
  const shown = new Map(); // by number: {ask, goneAt, verdict}
  return {
    node,
    count: () => shown.size,
    draw() {
      const waits = new Map(room.approvals.map((ask) => [ask.number, ask]));
      for (const [ask_number, ask] of waits) {
        const had = shown.get(ask_number);
        if (had) Object.assign(had, { ask, goneAt: null });
        else shown.set(ask_number, { ask, goneAt: null, verdict: null, isAnswering: false, wakesAt: Date.now() + ASLEEP });
      }
      for (const [ask_number, each] of shown) {
        if (waits.has(ask_number)) continue;
        each.goneAt ??= now();
        const isHeld = node.matches(":hover") || node.contains(document.activeElement);
        if (now() - each.goneAt > (isHeld ? KEPT * 3 : KEPT)) shown.delete(ask_number);
      }
      const first = [...shown.values()].slice(0, most);
      keyed(node, first, (each) => each.ask.number, makeAsk, updateAsk);
      node.hidden = !shown.size;
    },
  };
}

function makeAsk(each) {
  const { ask } = each;
  const title = el("h3", { id: `ask-${ask.number}` }, "May ", el("code", {}, named(ask.tool, 200)), " be called?");
  const left = el("span", { class: "muted" });
  const who = el(
    "p",
    { class: "who" },
    `Approval ${ask.number}, of `,
    serverLink(ask.server),
    ask.session ? ", for the session " : ", for the room itself",
    ask.session && named(ask.session, 80),
  );
  const bar = el("i");
  const buttons = el("div", { class: "buttons" });
  if (isOwner()) {
    const button = (verdict, text, kind) =>
      el(
        "button",
        {
          type: "button",
          class: kind,
          disabled: true,
          "aria-describedby": `ask-${ask.number}`,
          on: { click: (event) => answer(each, verdict, event.currentTarget) },
        },
        text,
      );
    buttons.append(
      button("once", "Allow once", "first"),
      button("session", "Allow for its session"),
      button("deny", "Refuse", "bad"),
    );
    setTimeout(() => changed("approvals"), ASLEEP + 20);
  } else buttons.append(el("span", { class: "said-so" }, "To answer: ", command(typed("approve", ask.number))));
  return el(
    "article",
    { class: "ask", "aria-labelledby": `ask-${ask.number}` },
    el("div", { class: "left" }, bar),
    el("header", {}, title, left),
    who,
    el("pre", { tabindex: "0" }, plain(ask.question, 20000)),
    buttons,
  );
}

async function answer(each, verdict, button) {
  const { number: which } = each.ask;
  each.isAnswering = true;
  if (await actFrom(button, { action: "answer", number: which, verdict })) each.verdict = verdict;
  each.isAnswering = false;
  changed("approvals");
}

function updateAsk(node, each) {
  const { ask, goneAt, verdict } = each;
  const left = remaining(ask, ask.left) ?? 0;
  const all = left + (lasted(ask, ask.waiting) ?? 0);
  const said = node.querySelector("header > span");
  const bar = node.querySelector(".left > i");
  const isOver = goneAt !== null;
  node.classList.toggle("over", isOver);
  setText(said, verdict ? DONE[verdict] : isOver ? "It waits no more." : `${span(left)} left`);
  bar.style.setProperty("transform", `scaleX(${isOver || !all ? 0 : (left / all).toFixed(3)})`);
  const isOff = isOver || verdict || each.isAnswering || Date.now() < each.wakesAt || !mayAct();
  for (const one of node.querySelectorAll(".buttons > button")) one.disabled = Boolean(isOff);
}

// ---- the table of servers

let filterServers = () => {};

function serversBlock() {
  const wanted = { group: "all", text: "" };
  const open = (row) => {
    location.hash = serverAddress(row.name);
  };
  const table = new Table({
    label: "Servers",
    keyOf: (row) => row.name,
    rowClass: (row) => [STATES[stateOf(row)].kind, route.opened === `servers/${row.name}` && "open"].filter(Boolean).join(" "),
    open,
    empty: ["No server is configured.", "To add one: greenroom add NAME -- COMMAND"],
    columns: [
      {
        key: "name",
        head: "Server",
        order: (row) => row.name,
        width: "22%",
        make: () =>
          el(
            "div",
            { class: "stack" },
            el("a", { class: "name" }, el("bdi")),
            el("span", { class: "under" }, el("span", { class: "small-state" }), el("span")),
          ),
        update: (cell, row) => {
          const [name, under] = cell.firstChild.children;
          const [state, noted] = under.children;
          setText(name.firstChild, oneLine(row.name, 120));
          setAttribute(name, "href", serverAddress(row.name));
          setAttribute(name, "aria-current", route.opened === `servers/${row.name}` && "true");
          setState(state, row);
          setText(noted, notes(row, !toldAbove.has(row.name)));
        },
      },
      {
        key: "state",
        head: "State",
        order: (row) => RANK.get(stateOf(row)),
        width: "136",
        class: "middle",
        update: setState,
      },
      {
        key: "notes",
        head: "Notes",
        class: "note wide",
        make: () => el("div", { class: "stack" }, el("span", { class: "two-lines" })),
        update: (cell, row) => {
          const said = notes(row, !toldAbove.has(row.name));
          setText(cell.firstChild.firstChild, said);
          setAttribute(cell, "title", said || null);
        },
      },
      {
        key: "strip",
        head: "Last 15 minutes",
        class: "wide",
        width: "196",
        make: () => el("div", { class: "spark" }, makeStrip(), el("span", { class: "muted" })),
        update: (cell, row) => {
          const [strip, most] = cell.firstChild.children;
          const busiest = drawStrip(strip, row);
          setText(most, busiest ? number(busiest) : "");
          setAttribute(most, "title", busiest ? `the highest bar: ${counted(busiest, "call")} in ${BIN} s` : null);
        },
      },
      numberColumn("calls", "Calls", (row) => inAll(row, "inFlight"), { width: "64", class: "middle" }),
      numberColumn("queued", "Queued", (row) => inAll(row, "queued"), { width: "78", class: "middle" }),
      numberColumn("tools", "Tools", (row) => (row.cached ? row.toolCount : null), { width: "62", class: "middle" }),
      numberColumn("incarnation", "Incarnation", (row) => row.incarnation, { width: "104", class: "wide" }),
    ],
  });
  const search = searchField("Search servers", (text) => {
    wanted.text = text.trim().toLowerCase();
    show();
  });
  const filters = el("div", { class: "filters", role: "group", "aria-label": "Show only" });
  const node = el(
    "section",
    { class: "block", "aria-label": "Servers" },
    el("header", {}, el("h2", {}, "Servers"), search, filters),
    table.node,
  );

  function choose(group) {
    wanted.group = group;
    show();
  }
  filterServers = (group) => {
    choose(group);
    node.scrollIntoView();
  };

  function show() {
    const all = [...room.servers.values()];
    const sizes = new Map(GROUPS.map(([group]) => [group, 0]));
    sizes.set("all", all.length);
    const rows = [];
    for (const row of all) {
      const { group } = STATES[stateOf(row)];
      sizes.set(group, sizes.get(group) + 1);
      const fits =
        wanted.group === "all" || wanted.group === group || (wanted.group === "connected" && connectedSomewhere(row));
      if (fits && (!wanted.text || matches(row, wanted.text))) rows.push(row);
    }
    rows.sort((one, other) => urgency(one) - urgency(other)); // the sort keeps the order of the configuration
    const groups = GROUPS.filter(([group]) => group === "all" || sizes.get(group) || group === wanted.group);
    keyed(
      filters,
      groups,
      ([group]) => group,
      ([group]) => el("button", { type: "button", on: { click: () => choose(group) } }, el("span"), " ", el("b")),
      (button, [group, word]) => {
        setAttribute(button, "aria-pressed", String(group === wanted.group));
        setText(button.firstChild, word);
        setText(button.lastChild, number(sizes.get(group)));
      },
    );
    filters.hidden = !all.length;
    search.hidden = !all.length;
    const none = all.length
      ? [
          "No server fits.",
          wanted.text
            ? `None has “${oneLine(wanted.text, 60)}” in its name, state or notes.`
            : "None is in this state.",
        ]
      : ["No server is configured.", "To add one: greenroom add NAME -- COMMAND"];
    table.set(rows, none);
  }

  return {
    node,
    table,
    search,
    draw(kinds) {
      if (kinds.has("servers") || kinds.has("all")) show();
      else table.draw(true);
    },
    tick: () => table.draw(true),
  };
}

/** What has happened to a server in a failed state. */
const HAPPENED = { failed: "has failed", lost: "was lost", broken: "cannot be used" };

/** Show the state of a row in this element. */
function setState(node, row) {
  const state = stateOf(row);
  if (node.state !== state) node.replaceChildren(stateMark(state));
  node.state = state;
}

/** What has failed comes first, then what needs a person, then all others. */
const URGENT = ["failed", "person"];
function urgency(row) {
  const place = URGENT.indexOf(STATES[stateOf(row)].group);
  return place < 0 ? URGENT.length : place;
}

const inAll = (row, key) => row.addresses.reduce((sum, each) => sum + each[key], row[key]);
const matches = (row, text) => `${row.name} ${STATES[stateOf(row)].word} ${notes(row)}`.toLowerCase().includes(text);
