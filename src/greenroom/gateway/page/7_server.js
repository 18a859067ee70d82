// The panel of one server: why it is as it is, its last quarter of an hour, its calls, and its last words.

const ASK_AGAIN = 2000; // ms between two questions about what the panel shows

const ACTIONS = {
  connect: ["Connect", "first"],
  drain: ["Drain", null],
  restart: ["Restart", null],
  enable: ["Enable", "first"],
  disable: ["Disable", "bad"],
};

/** What may be done with a row now, the likeliest first. */
function actionsFor(row) {
  if (row.disabled) return ["enable"];
  if (row.broken) return ["disable"];
  if (stateOf(row) === "connected") return ["drain", "restart", "disable"];
  if (row.state === "connecting") return ["drain", "disable"];
  if (row.state === "draining") return ["restart", "disable"];
  return ["connect", "disable"];
}

function serverPanel(name, close) {
  const title = el("h2", { tabindex: "-1", id: "panel-name" }, named(name, 2000));
  const state = el("p");
  const buttons = el("div", { class: "buttons" });
  const head = panelHead(title, close, state, buttons);
  const reasons = el("ul", { class: "reasons" });
  const strip = makeStrip();
  setAttribute(strip, "viewBox", `0 0 ${WINDOW} 64`);
  const most = el("span");
  const moves = el("ol", { class: "moves" });
  const history = part(
    "Last 15 minutes",
    el(
      "div",
      { class: "tall" },
      strip,
      el("div", { class: "axis" }, el("span", {}, "15 min ago"), most, el("span", {}, "now")),
    ),
    moves,
  );
  const calls = callsTable();
  const callsPart = part("Calls now", calls.node);
  const latency = latencyTable(false);
  const latencyPart = part("Latency", latency.node);
  const stderr = el("pre", { tabindex: "0", role: "region", "aria-label": "Standard error" });
  const stderrPart = part("Last lines on stderr", stderr);
  const tools = el("p");
  const facts = el("dl", { class: "facts" });
  const own = el("ul", { class: "moves" });
  const ownPart = part("Addresses of sessions and calls", own);
  const entry = el("pre", { tabindex: "0", role: "region", "aria-label": "Its entry" });
  const entryPart = el("details", {}, el("summary", {}, "Its entry, without secrets"), entry);
  const node = el(
    "div",
    { class: "server" },
    head,
    part("Why", reasons),
    history,
    callsPart,
    latencyPart,
    stderrPart,
    ownPart,
    part("What it has", tools, facts),
    entryPart,
  );
  function drawHistory(row) {
    const busiest = drawStrip(strip, row, 64);
    setText(most, busiest ? `highest bar: ${counted(busiest, "call")} in ${BIN} s` : "");
  }
  let answer = null;
  let askedAt = 0;
  const abort = new AbortController();

  /** Ask why it is so, again and again: what it writes has no event, and reasons count seconds. */
  async function askWhy() {
    askedAt = Date.now();
    try {
      answer = await ask("server", { name }, abort.signal);
      drawAnswer();
    } catch (error) {
      if (!abort.signal.aborted && error instanceof Refused)
        reasons.replaceChildren(el("li", { class: "muted" }, plain(error.text)));
    }
  }

  function drawAnswer() {
    keyed(
      reasons,
      (answer.explain?.reasons ?? []).map((reason, place) => ({ ...reason, place })),
      ({ step, place }) => `${place} ${step}`,
      ({ step }) => el("li", {}, el("span"), step && stepOf(step)),
      (item, { what }) => setText(item.firstChild, plain(what, 2000)),
    );
    const text = (answer.stderr ?? [])
      .map((each) => plain(typeof each === "string" ? each : each.text, 2000))
      .join("\n");
    const atEnd = stderr.scrollTop + stderr.clientHeight >= stderr.scrollHeight - 4;
    setText(stderr, answer.stderr === null ? "It is shown to an owner alone." : text);
    if (atEnd) stderr.scrollTop = stderr.scrollHeight;
    stderrPart.hidden = !text && answer.stderr !== null;
    setText(entry, answer.entry ? plain(JSON.stringify(answer.entry, null, 2), 20000) : "");
    entryPart.hidden = !answer.entry;
  }
  stderrPart.hidden = entryPart.hidden = true;

  return {
    name,
    node,
    title,
    end: () => abort.abort(),
    draw() {
      const row = room.servers.get(name);
      head.lastChild.hidden = !row || !mayAct();
      if (!row) {
        state.replaceChildren(room.ready ? "No server of this name is configured." : "");
        for (const each of [...node.children].slice(1)) each.hidden = true;
        return;
      }
      if (!askedAt) askWhy();
      drawState(row);
      keyed(
        buttons,
        mayAct() ? actionsFor(row) : [],
        (action) => action,
        (action) => actButton(ACTIONS[action][1], { action, server: name }, ACTIONS[action][0]),
      );
      drawHistory(row);
      const last = (room.moves.get(name) ?? []).filter(isTold).slice(-8).reverse();
      keyed(
        moves,
        last,
        (move) => move.seq,
        (move) =>
          el(
            "li",
            {},
            el("time", {}, clock(move.at)),
            el("span", { class: isFailure(move) && "failed" }, moveInWords(move)),
          ),
      );
      const mine = room.calls.filter((call) => call.server === name);
      callsPart.hidden = !mine.length;
      calls.set(mine);
      const known = [...room.tools.values()].filter((each) => each.server === name);
      latencyPart.hidden = !known.length;
      latency.set(known);
      const others = row.addresses;
      ownPart.hidden = !others.length;
      keyed(
        own,
        others.slice(0, 50),
        (each) => each.scope,
        () => el("li"),
        (each, address) => {
          const words = [
            address.state,
            address.pid && `pid ${address.pid}`,
            address.inFlight && counted(address.inFlight, "call"),
          ]
            .filter(Boolean)
            .join(", ");
          if (each.said !== words) each.replaceChildren(el("span", {}, words), named(address.scope));
          each.said = words;
        },
      );
      drawFacts(row);
    },
    tick() {
      const row = room.servers.get(name);
      if (!row) return;
      if (Date.now() - askedAt >= ASK_AGAIN) askWhy();
      drawState(row);
      drawHistory(row);
      calls.tick();
    },
  };

  function drawState(row) {
    const key = stateOf(row);
    if (state.key !== key) state.replaceChildren(stateMark(key), el("span", { class: "muted" }));
    state.key = key;
    const since = stateSince(name);
    const so =
      since !== null && ["connected", "connecting", "draining"].includes(key) ? ` for ${span(now() - since)}` : "";
    const said = notes(row);
    setText(state.lastChild, `${so}${said ? ` – ${said}` : ""}`);
  }

  function drawFacts(row) {
    const count = row.cached ? counted(row.toolCount, "tool") : "not known yet";
    const given = `${count}${row.cached}`;
    if (tools.given !== given)
      tools.replaceChildren(
        row.cached ? el("a", { href: `#/tools?server=${encodeURIComponent(name)}` }, count) : count,
      );
    tools.given = given;
    const known = [
      ["lifecycle", row.lifecycle],
      ["process", row.pid == null ? null : `pid ${row.pid}`],
      ["incarnation", number(row.incarnation)],
      ["last start took", duration(row.startTook)],
      ["failed starts in a row", row.failedStarts || null],
      ["changed", row.changed?.join(", ")],
      ["changing again and again", row.flapping?.join(", ")],
      ["hidden characters", row.hidden?.join("; ")],
      ["clients would refuse", row.faults?.join("; ")],
      ["limits", row.limited?.join("; ")],
      ["odd", row.odd],
      ["a session must give", row.sessionVariables?.join(", ")],
    ].filter(([, value]) => value != null && value !== "");
    keyed(
      facts,
      known.flatMap(([label, value]) => [
        ["dt", label, label],
        ["dd", label, value],
      ]),
      ([tag, label]) => tag + label,
      ([tag]) => el(tag),
      (each, [, , text]) => setText(each, oneLine(text, 1000)),
    );
  }
}

/** Whether a transition says something: that nothing runs after an ending that was told does not. */
const isTold = (move, place, moves) =>
  (move.scope !== "call:catalogue" || isFailure(move)) &&
  (!["idle", "closed"].includes(move.to) || (place > 0 && moves[place - 1].cause == null));

/** A next step: a command that can be copied, or a sentence. */
function stepOf(step) {
  const found = /^(.*?:\s+)?(greenroom\s.+)$/s.exec(step);
  return found
    ? el("span", {}, found[1] && el("span", { class: "muted" }, plain(capital(found[1]))), command(found[2]))
    : el("span", { class: "muted" }, plain(capital(step), 2000));
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const part = (title, ...children) =>
  el("section", { class: "block", "aria-label": title }, el("h3", {}, title), ...children);

// ---- the tables of calls, here and in the section of calls

/** Calls that are open: sent, or waiting to be. */
function callsTable(withServer = false) {
  const body = el("tbody");
  const node = el(
    "table",
    { class: "plain", "aria-label": "Open calls" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col" }, "Tool"),
        withServer && el("th", { scope: "col", class: "middle" }, "Server"),
        el("th", { scope: "col", class: "middle" }, "Session"),
        el("th", { scope: "col", width: "100" }, "State"),
        el("th", { scope: "col", width: "80", class: "number" }, "For"),
      ),
    ),
    body,
  );
  let shown = [];
  const tick = () => {
    for (const [place, call] of shown.entries()) setText(body.rows[place].lastChild, span(now() - call.since));
  };
  return {
    node,
    tick,
    set(calls) {
      shown = calls.slice(0, 200);
      keyed(
        body,
        shown,
        (call) => call.id,
        (call) =>
          el(
            "tr",
            {},
            el("td", { class: "code" }, el("a", { href: callAddress(call.id) }, named(call.tool ?? call.method ?? ""))),
            withServer && el("td", { class: "middle" }, serverLink(call.server)),
            el("td", { class: "middle muted" }, call.session ? named(call.session) : "the room"),
            el("td"),
            el("td", { class: "number" }),
          ),
        (row, call) => setText(row.cells[row.cells.length - 2], call.state === "sent" ? "in flight" : call.state),
      );
      tick();
    },
  };
}

/** How long each tool's calls took. */
function latencyTable(withServer = true) {
  const body = el("tbody");
  const right = { scope: "col", class: "number" };
  const node = el(
    "table",
    { class: "plain latency", "aria-label": "Latency by tool" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col" }, "Tool"),
        withServer && el("th", { scope: "col", class: "middle" }, "Server"),
        el("th", { ...right, width: 50 }, "Calls"),
        el("th", { ...right, width: 56 }, "Failed"),
        el("th", { ...right, width: 70, title: "half of the calls took at most this" }, "p50"),
        el("th", { ...right, width: 70, title: "19 of 20 calls took at most this" }, "p95"),
      ),
    ),
    body,
  );
  return {
    node,
    set(all) {
      const shown = [...all].sort((one, other) => other.calls - one.calls).slice(0, 100);
      keyed(
        body,
        shown,
        (each) => `${each.server}\n${each.tool}`,
        (each) =>
          el(
            "tr",
            {},
            el("td", { class: "code", title: oneLine(each.tool) }, named(each.tool)),
            withServer && el("td", { class: "middle" }, serverLink(each.server)),
            ...Array.from({ length: 4 }, () => el("td", { class: "number" })),
          ),
        (row, each) => {
          if (row.calls === each.calls) return;
          row.calls = each.calls;
          const cells = [...row.cells].slice(-4);
          [
            number(each.calls),
            number(each.failed),
            duration(each.quantile(0.5)),
            duration(each.quantile(0.95)),
          ].forEach((said, place) => setText(cells[place], said));
          cells[1].classList.toggle("zero", !each.failed);
          cells[1].classList.toggle("failed", each.failed > 0);
        },
      );
    },
  };
}
