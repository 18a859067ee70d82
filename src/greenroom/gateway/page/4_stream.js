// What is asked and what is heard. The token came in the address's fragment, is kept for this tab only, and is sent in a
// header: there are no cookies, so no other page can act with what this one may.

const KEY = "greenroom-token";

function takeToken() {
  const given = /^#token=([^&]*)/.exec(location.hash);
  if (given) {
    history.replaceState(null, "", `${location.pathname}${location.search}#/`);
    keepToken(decodeURIComponent(given[1]));
  }
}

function keepToken(token) {
  try {
    sessionStorage.setItem(KEY, token);
  } catch {
    keepToken.here = token; // this browser keeps nothing: it lasts until the page is loaded again
  }
}

function token() {
  try {
    return sessionStorage.getItem(KEY) ?? keepToken.here ?? "";
  } catch {
    return keepToken.here ?? "";
  }
}

/** What the room answers if it cannot do it. `mend`: what to do about it. */
class Refused extends Error {
  constructor(status, said = {}) {
    super(said.message ?? `The room answered with status ${status}.`);
    Object.assign(this, { status, code: said.code, mend: said.mend });
  }

  get text() {
    return this.mend ? `${this.message} ${this.mend}` : this.message;
  }
}

function headers() {
  const known = token();
  return known ? { Authorization: `Bearer ${known}` } : {};
}

async function ask(path, query = {}, signal = undefined) {
  const url = new URL(`/page/${path}`, location.origin);
  for (const [key, value] of Object.entries(query)) if (value !== "" && value != null) url.searchParams.set(key, value);
  return answerOf(await fetch(url, { headers: headers(), signal, credentials: "omit", cache: "no-store" }));
}

async function answerOf(response) {
  const said = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, said.error);
  return said;
}

/** Have the room do something. Raises `Refused`. */
async function act(what) {
  const response = await fetch("/page/do", {
    method: "POST",
    headers: { ...headers(), "Content-Type": "application/json" },
    body: JSON.stringify(what),
    credentials: "omit",
  });
  return answerOf(response);
}

/** The same for a button: it waits, and what came of it is said. Returns the answer; undefined if it was refused. */
async function actFrom(button, what) {
  button.disabled = true;
  try {
    const answer = await act(what);
    if (answer.said) say(answer.said);
    return answer;
  } catch (error) {
    say(error instanceof Refused ? error.text : "The room does not answer. It may have ended.", true);
    return undefined;
  } finally {
    button.disabled = false;
  }
}

/** A button that does this. */
function actButton(kind, what, ...said) {
  const click = (event) => actFrom(event.currentTarget, what);
  return el("button", { type: "button", class: kind, on: { click } }, ...said);
}

// ---- the stream

const SILENT = 12_000; // ms without a word, not even a sign of life, after which it is lost; those come each 5 s

const link = { state: "closed", abort: null, retryAt: 0, tries: 0, timer: 0, heardAt: 0, why: "", isOver: false };

function setLink(state) {
  const isLive = state === "live";
  if (isLive) stoodAt = null;
  else if (room.ready) room.heardUntil = stoodAt ??= link.heardAt / 1000 + clockAhead;
  link.state = state;
  changed("link");
}

/** A gateway that was stopped, or a network that is gone, closes nothing. */
function watchSilence() {
  if (link.abort && Date.now() - link.heardAt > SILENT) link.abort.abort();
}

async function openStream() {
  if (link.abort || document.hidden) return;
  clearTimeout(link.timer);
  const abort = (link.abort = new AbortController());
  setLink(room.ready ? "opening again" : "opening");
  link.heardAt = Date.now();
  try {
    const hello = await ask("hello", {}, abort.signal);
    const before = room.hello?.gateway;
    if (before && (before.pid !== hello.gateway.pid || before.startedAt !== hello.gateway.startedAt)) forgetEvents();
    room.hello = hello;
    changed("hello");
    const response = await fetch("/page/watch", {
      headers: headers(),
      signal: abort.signal,
      credentials: "omit",
      cache: "no-store",
    });
    if (!response.ok) throw new Refused(response.status, (await response.json().catch(() => ({}))).error);
    await readStream(response.body);
    throw new Error("the stream has ended");
  } catch (error) {
    if (link.abort !== abort) return; // it was closed here
    link.abort = null;
    if (error instanceof Refused && (error.status === 401 || error.status === 403 || error.status === 404)) {
      link.refused = error;
      setLink("refused");
      return;
    }
    link.why = error instanceof Refused ? error.text : "";
    link.isOver = error instanceof Refused && error.code === "no_gateway";
    link.tries += 1;
    const seconds = Math.min(10, 2 ** Math.min(link.tries - 1, 4) / 2);
    link.retryAt = Date.now() / 1000 + seconds;
    link.timer = setTimeout(openStream, seconds * 1000);
    setLink(link.isOver ? "ended" : "lost");
  }
}

function closeStream() {
  clearTimeout(link.timer);
  const { abort } = link;
  link.abort = null;
  abort?.abort();
  setLink("paused");
}

/** Read server-sent events until the stream ends. */
async function readStream(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    link.heardAt = Date.now();
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) takeMessage(part);
  }
}

const HEARD = { snapshot: takeSnapshot, change: takeChange, events: takeEvents, lagged: takeLagged };

function takeMessage(part) {
  let event = "message";
  const data = [];
  for (const line of part.split(/\r?\n/)) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
  }
  if (!data.length || (!(event in HEARD) && event !== "refused")) return;
  const told = JSON.parse(data.join("\n"));
  if (event === "refused") throw new Refused(503, told.error);
  link.tries = 0;
  if (link.state !== "live") setLink("live"); // not before: what is shown until then is old
  HEARD[event](told);
}
