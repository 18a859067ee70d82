// The panel of one call, and how calls are said.

const TAPE_KINDS = { cancelled: "disabled", open: "connecting" };
const callAddress = (number) => `#/calls/${number}`;
const sinceBegin = (at) => `${at.toFixed(3)} s`;
const utc = (at) => new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ");
const tapeOutcome = (call) =>
  call.isError
    ? "tool’s error"
    : call.outcome === "open"
      ? "has not ended"
      : oneLine(call.outcome.replaceAll("_", " "), 60);

/** The panel of one call, on a tape or among the last minutes of a room: what went wrong first, then what was said. */
function callPanel(number, close) {
  const title = el("h2", { tabindex: "-1", id: "panel-name" }, `Call ${oneLine(number, 20)}`);
  const state = el("p");
  const steps = el("div", { class: "buttons" });
  const said = el("div", { class: "server" });
  const node = el(
    "div",
    { class: "server" },
    panelHead(title, close, state, steps),
    said,
  );
  const abort = new AbortController();
  let isOpen = false; // it had not ended when it was read
  let readAt = 0;

  async function read() {
    readAt = Date.now();
    try {
      show(await ask("call", { number }, abort.signal));
    } catch (error) {
      if (abort.signal.aborted) return;
      isOpen = false;
      const known = room.ended.find((call) => String(call.call) === number);
      if (error instanceof Refused && known) showEnd(known);
      else state.replaceChildren(error instanceof Refused ? plain(error.text) : "Nobody answers.");
    }
  }

  /** What is known of a call whose contents are not kept any more. */
  function showEnd(call) {
    setOutcome(call.isBad ? "failed" : (TAPE_KINDS[call.outcome] ?? "connected"), outcomeInWords(call));
    title.replaceChildren(el("code", {}, named(call.tool ?? call.method, 400)));
    said.replaceChildren(
      el("p", { class: "muted" }, "What was said in it is not kept any more."),
      factList([
        ["number", call.call],
        ["server", call.scope === "shared" ? call.server : `${call.server} ${call.scope}`],
        ["session", call.client ?? "the room’s own"],
        ["ended", clock(call.at)],
        ["waited", duration(call.waited)],
        ["took", duration(call.taken)],
        ["reach", call.reach?.replaceAll("_", " ")],
        ["incarnation", call.incarnation],
        ["method", call.method],
      ]),
    );
  }

  function setOutcome(kind, words) {
    state.replaceChildren(
      el("span", { class: `state ${kind}` }, mark(kind === "connected" ? "done" : kind, kind), el("span", {}, words)),
    );
  }

  function show(call) {
    isOpen = call.outcome === "open" && !isTape();
    const kind = call.hasFailed ? "failed" : (TAPE_KINDS[call.outcome] ?? "connected");
    title.replaceChildren(el("code", {}, named(call.tool ?? call.method, 400)));
    setOutcome(kind, tapeOutcome(call));
    const { arguments: asked, ...others } = call.params ?? {};
    const when = isTape() ? `${sinceBegin(call.at)}, ${utc(room.hello.tape.at + call.at)} UTC` : clock(call.at);
    said.replaceChildren(
      call.error ? shown("Error", call.error.rpc ? call.error : call.error.message) : "",
      call.isShort
        ? el("p", { class: "muted" }, "What was said is shown to an owner alone.")
        : call.leftOut?.params == null
          ? shown("Arguments", asked ?? others)
          : "",
      factList([
        ["number", call.number],
        ["server", call.scope === "shared" ? call.server : `${call.server} ${call.scope}`],
        ["session", call.session ?? "the room’s own"],
        ["accepted", when],
        ["waited", duration(call.waited)],
        [isOpen ? "open for" : "took", call.seconds == null ? "" : `${duration(call.seconds)}${call.waited ? ", with the wait" : ""}`],
        ["reach", call.reach.replaceAll("_", " ")],
        ["incarnation", call.incarnation],
        ["method", call.method],
        ...Object.entries(call.leftOut ?? {}).map(([what, size]) => [what, `${number(size)} bytes, which are not kept`]),
      ]),
      ...[
        call.result != null && shown("Answer", textsOf(call.result) ?? call.result),
        call.result != null && textsOf(call.result) != null && wholeOf("The whole answer", call.result),
        call.progress.length > 0 && shown("Progress", call.progress.map(stepInWords).join("\n")),
        ...call.asked.map((each) => shown(`It asked its client: ${oneLine(each.method, 60)}`, each)),
      ].filter(Boolean),
    );
  }

  const stepInWords = ({ at, params }) =>
    `${sinceBegin(at)}  ${params.progress ?? ""}${params.total == null ? "" : ` of ${params.total}`}  ${params.message ?? ""}`;

  read();
  return {
    name: number,
    node,
    title,
    end: () => abort.abort(),
    draw() {
      const all = room.taped ?? room.ended.map((call) => ({ number: call.call })).reverse();
      const place = all.findIndex((call) => String(call.number) === number);
      const ways = [
        ["Previous", all[place - 1]],
        ["Next", place < 0 ? undefined : all[place + 1]],
      ].filter(([, call]) => call !== undefined);
      keyed(
        steps,
        ways,
        ([word]) => word,
        ([word]) => el("a", { class: "button small" }, `${word} call`),
        (link, [, call]) => setAttribute(link, "href", callAddress(call.number)),
      );
    },
    tick() {
      if (isOpen && Date.now() - readAt >= ASK_AGAIN) read();
    },
  };
}

/** The texts of a result; null: it has none, or something else beside. */
function textsOf(result) {
  const blocks = result?.content;
  if (!Array.isArray(blocks) || !blocks.length || !blocks.every((each) => typeof each?.text === "string")) return null;
  return blocks.map((each) => each.text).join("\n");
}

const shownText = (value) => plain(asText(value), 300_000);

function shown(heading, value) {
  return part(heading, el("pre", { tabindex: "0" }, shownText(value)));
}

function wholeOf(heading, value) {
  return el(
    "details",
    {},
    el("summary", {}, heading),
    el("pre", { tabindex: "0" }, shownText(value)),
  );
}
