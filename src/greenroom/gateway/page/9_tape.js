// The page of a tape: what was recorded, on one section. Nothing changes here and nothing can be done.

const TAPE_SECTIONS = [{ path: "", title: "Tape", icon: "timeline", make: tapeSection }];

function tapeSection() {
  const { tape } = room.hello;
  const head = sectionHead(named(tape.name, 200));
  const totals = figures();
  const timeline = makeTimeline(openSpan, sinceBegin);
  const detail = el("div", { class: "block span" });
  const wanted = { text: "", failed: false };
  let calls = [];
  let isRead = false;
  const abort = new AbortController();
  const table = new Table({
    label: "Calls",
    keyOf: (call) => call.place,
    rowClass: (call) => [call.hasFailed && "failed", route.opened === `calls/${call.number}` && "open"].filter(Boolean).join(" "),
    open: (call) => {
      location.hash = callAddress(call.number);
    },
    empty: ["No call is on this tape."],
    columns: [
      textColumn("at", "At", (call) => sinceBegin(call.at), { width: "90", order: (call) => call.at, class: "middle" }),
      {
        key: "tool",
        head: "Tool",
        class: "code",
        order: (call) => call.tool ?? call.method,
        make: () => el("div", { class: "stack" }, el("a", {}, el("bdi")), el("span", { class: "under narrow" })),
        update: (cell, call) => {
          const [link, under] = cell.firstChild.children;
          setAttribute(link, "href", callAddress(call.number));
          setAttribute(link, "aria-current", route.opened === `calls/${call.number}` && "true");
          setText(link.firstChild, oneLine(call.tool ?? call.method, 120));
          setText(under, `${tapeOutcome(call)}, ${sinceBegin(call.at)}`);
        },
      },
      textColumn("server", "Server", (call) => oneLine(call.server, 120), {
        class: "middle",
        width: "16%",
        order: (call) => call.server,
      }),
      textColumn("session", "Session", (call) => oneLine(call.session ?? "the room", 120), {
        class: "wide muted",
        width: "14%",
        order: (call) => call.session ?? "",
      }),
      textColumn("outcome", "Outcome", tapeOutcome, {
        class: "note middle",
        width: "130",
        order: (call) => call.outcome,
      }),
      numberColumn("waited", "Waited", (call) => call.waited, { class: "wide", width: "84", said: duration }),
      numberColumn("taken", "Took", (call) => call.seconds, { width: "84", said: duration }),
    ],
  });
  const happened = new Table({
    label: "What servers did",
    keyOf: (each) => each.place,
    rowClass: (each) => spanKind(each) === "error" && "failed",
    empty: ["Nothing happened to servers."],
    columns: [
      textColumn("at", "At", (each) => sinceBegin(each.start), { width: "90" }),
      textColumn("server", "Server", (each) => oneLine(each.lane.name, 120), {
        width: "22%",
        order: (each) => each.lane.name,
      }),
      textColumn("what", "What", (each) => oneLine(each.name), { titled: true, order: (each) => each.name }),
      textColumn("why", "Why", (each) => oneLine([each.about.cause, each.about.detail].filter(Boolean).join(": ")), {
        class: "note middle",
        titled: true,
      }),
      numberColumn("took", "For", (each) => (each.kind === "mark" ? null : each.end - each.start), {
        width: "84",
        said: duration,
      }),
    ],
  });
  const search = searchField("Search calls", (text) => {
    wanted.text = text.trim().toLowerCase();
    show();
  });
  const onlyFailed = el("button", { type: "button", "aria-pressed": "false" }, "Failed ", el("b", {}, number(tape.failed)));
  onlyFailed.addEventListener("click", () => {
    wanted.failed = !wanted.failed;
    setAttribute(onlyFailed, "aria-pressed", String(wanted.failed));
    show();
  });

  // A long tape is shown in parts.
  let first = 0;
  const parts = el("div", { class: "buttons", role: "group", "aria-label": "Which calls" });
  parts.hidden = tape.calls <= tape.most;

  function drawParts() {
    const go = (word, start) =>
      el(
        "button",
        {
          type: "button",
          disabled: start < 0 || start >= tape.calls,
          on: {
            click: () => {
              first = start;
              read();
            },
          },
        },
        word,
      );
    const last = Math.min(tape.calls, first + tape.most);
    parts.replaceChildren(
      go("Earlier calls", first - tape.most),
      go("Later calls", first + tape.most),
      el("span", { class: "muted", role: "status" }, `Calls ${number(first + 1)} to ${number(last)} of ${number(tape.calls)}`),
    );
  }

  const reading = el("p", { class: "muted" }, "Loading …");

  async function read() {
    reading.hidden = false;
    try {
      const [{ lanes: given }, told] = await Promise.all([
        ask("timeline", { first }, abort.signal),
        ask("calls", { first }, abort.signal),
      ]);
      const lanes = inOrder(given);
      const isLast = first + tape.most >= tape.calls;
      timeline.set(lanes, first ? told.calls[0].at : 0, isLast ? tape.seconds : told.end);
      drawParts();
      calls = told.calls.map((call, place) => ({ ...call, place }));
      room.taped = calls;
      const ofServers = lanes.filter((lane) => lane.group === "servers").flatMap((lane) => lane.spans);
      happened.set(
        ofServers
          .filter((each) => each.kind !== "run")
          .sort((one, other) => one.start - other.start)
          .map((each, place) => Object.assign(each, { place })),
      );
      isRead = true;
      show();
      changed("calls");
    } catch (error) {
      if (!abort.signal.aborted) say(error instanceof Refused ? error.text : "The page’s command has ended.", true);
    }
    reading.hidden = true;
  }

  function show() {
    const text = wanted.text;
    const fits = (call) =>
      (!wanted.failed || call.hasFailed) &&
      (!text || `${call.tool ?? ""} ${call.method} ${call.server} ${call.session ?? ""}`.toLowerCase().includes(text));
    table.set(calls.filter(fits), calls.length ? ["No call fits."] : ["No call is on this tape."]);
  }

  function openSpan(each) {
    if (each.about.call != null) {
      location.hash = callAddress(each.about.call);
      return;
    }
    const title = el("h2", { tabindex: "-1" }, el("code", {}, named(each.name)));
    detail.replaceChildren(title, spanFacts(each));
    title.focus();
  }

  setText(head.note, `Recorded ${utc(tape.at)} UTC by Greenroom ${oneLine(tape.greenroom, 40)}, ${duration(tape.seconds)} long`);
  totals.set([
    ["calls", number(tape.calls)],
    ["failed", number(tape.failed), tape.failed && "failed"],
    ["servers", number(tape.servers)],
    ["sessions", number(tape.sessions)],
  ]);
  let stops = [];
  let cameFrom = null; // where a call was opened
  for (const place of [timeline.node, table.node]) place.addEventListener("focusin", () => (cameFrom = place));
  return {
    node: el(
      "div",
      { class: "section" },
      head.node,
      tape.isPart && el("p", { class: "notice" }, "This tape has a room’s last minutes, not what was before."),
      tape.ending && el("p", { class: "notice warn" }, tape.ending),
      totals.node,
      parts,
      block("Timeline", reading, timeline.node, detail),
      el(
        "section",
        { class: "block", "aria-label": "Calls" },
        el("header", {}, el("h2", {}, "Calls"), search, el("div", { class: "filters" }, onlyFailed)),
        table.node,
      ),
      block("What servers did", happened.node),
    ),
    needs: ["calls"],
    search,
    begin() {
      stops = [table.follow(), happened.follow()];
      read();
    },
    end() {
      abort.abort();
      for (const stop of stops) stop();
    },
    draw() {
      if (!isRead) return;
      table.draw(true);
      happened.draw(true);
    },
    leave(number) {
      if (cameFrom === timeline.node) timeline.focus();
      else table.focusKey(calls.find((call) => String(call.number) === number)?.place);
    },
  };
}
