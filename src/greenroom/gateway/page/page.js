// The frame: where one is, what is drawn there, the keyboard, light and dark, and the life of the stream.

const SECTIONS = [
  { path: "", title: "Overview", icon: "overview", make: overviewSection },
  { path: "calls", title: "Calls", icon: "calls", make: callsSection, badge: () => room.calls.length },
  { path: "sessions", title: "Sessions", icon: "sessions", make: sessionsSection, badge: () => room.clients.length },
  {
    path: "tasks",
    title: "Tasks",
    icon: "tasks",
    make: tasksSection,
    badge: () => room.tasks.filter((task) => task.status === "working" || task.status === "input_required").length,
    isThere: () => room.hello?.sections?.tasks !== false,
  },
  { path: "tools", title: "Tools", icon: "tools", make: toolsSection, badge: () => counts().tools },
  {
    path: "approvals",
    title: "Approvals",
    icon: "approvals",
    make: approvalsSection,
    badge: () => room.approvals.length,
    waits: true,
    isThere: () => room.hello?.sections?.approvals !== false,
  },
  { path: "changes", title: "Changes", icon: "changes", make: changesSection, badge: changesWaiting, waits: true },
  { path: "timeline", title: "Timeline", icon: "timeline", make: timelineSection },
  { path: "tree", title: "Tree", icon: "tree", make: treeSection },
  {
    path: "hosts",
    title: "Hosts",
    icon: "hosts",
    make: hostsSection,
    badge: () => room.hosts?.length ?? 0,
    isThere: () => room.hello?.sections?.cluster === true || room.hosts != null,
  },
];

// Where an address leads that no section has.
const NOWHERE = {
  path: null,
  title: "Nothing here",
  make: ({ first }) => ({
    node: el(
      "div",
      { class: "section" },
      sectionHead("Nothing here").node,
      blank(`This page has no “${oneLine(first, 60)}”.`, el("p", {}, el("a", { href: "#/" }, "To the overview"))),
    ),
    needs: [],
    draw() {},
  }),
};

const main = document.getElementById("main");
const panelPlace = document.getElementById("panel");
const route = { section: null, opened: null, shown: null, panel: null }; // `opened`: what the panel shows, as servers/one

const isTape = () => room.hello?.tape != null;
const sectionsThere = () => (isTape() ? TAPE_SECTIONS : SECTIONS.filter((section) => section.isThere?.() ?? true));

// What stands in the panel, by the first word of the address. It lies over the first section.
const PANELS = {
  servers: { isThere: () => !isTape(), make: serverPanel },
  calls: { isThere: () => true, make: callPanel },
};

function whereNow() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [first, ...rest] = path.split("/");
  let name = rest.join("/");
  try {
    name = decodeURIComponent(name);
  } catch {
    name = "";
  }
  return { first, rest: name, query: new URLSearchParams(query) };
}

/** Go to where the address says. */
function follow() {
  if (link.state === "refused" || !room.ready) return;
  const where = whereNow();
  const panel = PANELS[where.first]?.isThere() ? PANELS[where.first] : null;
  const opened = panel && where.rest ? `${where.first}/${where.rest}` : null;
  const path = !panel ? where.first : where.first === "calls" && !isTape() ? "calls" : "";
  const sections = isTape() ? TAPE_SECTIONS : SECTIONS;
  const section = sections.find((each) => each.path === path) ?? NOWHERE;
  const isFirst = route.section === null;
  if (
    section !== route.section ||
    section === NOWHERE ||
    (route.shown?.server ?? "") !== (section.path === "tools" ? (where.query.get("server") ?? "") : "")
  ) {
    route.shown?.end?.();
    route.section = section;
    route.shown = section.make(where);
    main.replaceChildren(route.shown.node);
    scrollTo(0, 0);
    route.shown.begin?.();
    if (!isFirst && !opened) main.querySelector("h1")?.focus({ preventScroll: true });
    document.title = section.path ? `${section.title} – Greenroom` : "Greenroom";
  } else if (section.path === "tools") route.shown.goTo(where.rest);
  if (opened !== route.opened) showPanel(opened, isFirst);
  draw(new Set(["all"])); // in this frame: what is not drawn yet would say that there is nothing
}

function showPanel(opened, isFirst) {
  const before = route.opened;
  const [, kind, name] = /^(\w+)\/(.*)$/s.exec(opened ?? "") ?? [];
  route.panel?.end();
  route.opened = opened;
  route.panel = opened === null ? null : PANELS[kind].make(name, closePanel);
  panelPlace.hidden = opened === null;
  panelPlace.replaceChildren(...(route.panel ? [route.panel.node] : []));
  document.body.classList.toggle("with-panel", opened !== null);
  if (route.panel) {
    setAttribute(panelPlace, "aria-labelledby", "panel-name");
    panelPlace.scrollTop = 0;
    if (!isFirst) route.panel.title.focus();
  } else if (before !== null && route.shown?.leave) {
    requestAnimationFrame(() => route.shown.leave?.(before.slice(before.indexOf("/") + 1)));
  }
}

function closePanel() {
  if (route.opened !== null) location.hash = `#/${route.section?.path ?? ""}`;
}

// ---- drawing

function draw(kinds) {
  drawFrame();
  if (link.state === "refused") return;
  const { shown, panel } = route;
  if (!room.ready) {
    main.replaceChildren(el("p", { class: "muted" }, link.why ? plain(link.why) : "Loading …"));
    return;
  }
  if (!shown) return follow();
  if (kinds.has("all") || shown.needs.some((kind) => kinds.has(kind))) shown.draw(kinds);
  if (panel && (kinds.has("all") || ["servers", "events", "calls", "hello", "link"].some((kind) => kinds.has(kind))))
    panel.draw();
  announce();
}

function drawFrame() {
  const there = sectionsThere();
  const nav = document.getElementById("sections");
  nav.hidden = link.state === "refused";
  if (!nav.firstChild) nav.append(el("ul"));
  keyed(
    nav.firstChild,
    there,
    (section) => section.title,
    (section) =>
      el(
        "li",
        {},
        el(
          "a",
          { href: `#/${section.path}` },
          icon(section.icon),
          el("span", {}, section.title),
          el("span", { class: "badge" }),
        ),
      ),
    (item, section) => {
      const [, , badge] = item.firstChild.children;
      const count = room.ready ? (section.badge?.() ?? 0) : 0;
      setAttribute(item.firstChild, "aria-current", section === route.section && "page");
      setText(badge, count ? number(count) : "");
      badge.hidden = !count;
      badge.classList.toggle("waits", Boolean(section.waits));
    },
  );
  drawLink();
  drawKind();
}

/** Say of what is no room in service that it is none. */
function drawKind() {
  const { tape, replay } = room.hello ?? {};
  const node = document.getElementById("kind");
  const word = tape ? "tape" : replay ? "replay" : "";
  node.hidden = !word;
  setText(node, word);
  setAttribute(node, "title", tape ? "A recording: nothing here runs." : replay && replayInWords(replay));
}

const replayInWords = ({ tape }) => `Calls here answer from the tape ${oneLine(tape, 200)}. Nothing is started.`;

const LINK = {
  closed: ["ring", "not open"],
  opening: ["connecting", "opening"],
  "opening again": ["connecting", "opening again"],
  live: ["connected", "live"],
  paused: ["ring", "paused"],
  lost: ["failed", "lost"],
  ended: ["failed", "ended"],
  refused: ["person", "no access"],
};

function drawLink() {
  const node = document.getElementById("link");
  const [kind, word] = link.state === "live" && isTape() ? ["ring", "recorded"] : LINK[link.state];
  const more =
    link.state === "lost"
      ? `, next try in ${span(Math.max(0, link.retryAt - Date.now() / 1000))}`
      : link.state === "live" && !isOwner() && !isTape()
        ? ", read only"
        : "";
  if (node.said !== kind + word + more)
    node.replaceChildren(mark(kind === "person" ? "person" : kind, kind), el("span", {}, word + more));
  node.said = kind + word + more;
  setAttribute(
    node,
    "title",
    link.state === "lost" && link.why
      ? plain(link.why)
      : link.state === "live" && !isOwner() && !isTape()
        ? "You may look and not act. greenroom page opens this page for its owner."
        : null,
  );
  const { hello } = room;
  if (hello) {
    const up = hello.gateway?.startedAt ? `, up ${span(wallNow() - hello.gateway.startedAt)}` : "";
    const line = `${hello.gateway?.folder ?? ""}\nGreenroom ${hello.version}, pid ${hello.gateway?.pid}${up}`;
    const place = document.getElementById("gateway");
    if (place.said !== line)
      place.replaceChildren(
        named(hello.gateway?.folder ?? "", 200),
        el("br"),
        oneLine(`Greenroom ${hello.version}, pid ${hello.gateway?.pid}${up}`),
      );
    place.said = line;
    setAttribute(place, "title", oneLine(hello.gateway?.config, 300) || null);
  }
  drawStale();
  if (link.state === "refused") showDoor();
}

/** Say of what is shown that it is not so any more, perhaps. */
function drawStale() {
  const stale = document.getElementById("stale");
  const isStale = room.ready && link.tries > 0 && link.state !== "live" && link.state !== "refused";
  if (isStale && isTape()) setText(stale, "The command that showed this tape has ended.");
  else if (isStale && link.isOver)
    setText(stale, `The gateway ${room.hello.gateway.pid} has ended. What is shown was so at ${clock(now())}. To see one that runs now: ${typed("page")}`);
  else if (isStale) setText(stale, `The gateway does not answer. What is shown was so at ${clock(now())}. ${typed("status")} says what still runs.`);
  stale.hidden = !isStale;
  document.body.classList.toggle("is-stale", isStale);
}

// What needs a person is told to a screen reader, and stands in the title of the tab, when it changes.
let lastTold = null;

function announce() {
  if (isTape()) return;
  const approvals = room.approvals.length;
  const changes = changesWaiting();
  const failed = counts().failed;
  const said = [
    approvals && `${counted(approvals, "call")} ${approvals === 1 ? "waits" : "wait"} for approval`,
    changes && `${counted(changes, "change")} to look at`,
    failed && `${counted(failed, "server")} failed`,
  ]
    .filter(Boolean)
    .join(", ");
  if (said !== lastTold) {
    lastTold = said;
    tell(said || "Nothing waits for you.");
    const title = route.section?.path ? `${route.section.title} – Greenroom` : "Greenroom";
    document.title = approvals + changes ? `(${approvals + changes}) ${title}` : title;
  }
}

// ---- the door: without a token, or with a wrong one

function showDoor() {
  if (main.querySelector(".door")) return;
  route.shown?.end?.();
  Object.assign(route, { section: null, shown: null });
  showPanel(null, true);
  const { status, text } = link.refused;
  const field = el("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const form = el(
    "form",
    {},
    el("label", { for: "token" }, "Token"),
    field,
    el("div", { class: "buttons" }, el("button", { class: "first", type: "submit" }, "Open")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!field.value) return;
    keepToken(field.value);
    main.replaceChildren();
    setLink("closed");
    openStream();
  });
  main.replaceChildren(
    el(
      "div",
      { class: "door" },
      el("h1", { tabindex: "-1" }, status === 401 ? "This page needs a token" : "This is not for you"),
      el("p", { class: "muted" }, plain(text)),
      status === 401 && token() && el("p", { class: "notice warn" }, "The token that this tab has is not taken."),
      form,
      el(
        "p",
        { class: "muted" },
        "On the machine of the gateway, this command opens the page with one: ",
        command("greenroom page"),
      ),
    ),
  );
  field.focus();
}

// ---- light and dark

const THEMES = { auto: "As the system", light: "Light", dark: "Dark" };

function setTheme(theme) {
  document.documentElement.classList.remove("light", "dark");
  if (theme !== "auto") document.documentElement.classList.add(theme);
  const button = document.getElementById("theme");
  button.replaceChildren(icon("theme"), el("span", {}, THEMES[theme]));
  setAttribute(button, "aria-label", `Colours: ${THEMES[theme]}. Change`);
  button.dataset.theme = theme;
}

function beginTheme() {
  let theme = "auto";
  try {
    theme = localStorage.getItem("greenroom-theme") ?? "auto";
  } catch {
    // it is as the system wants, then
  }
  setTheme(theme in THEMES ? theme : "auto");
  document.getElementById("theme").addEventListener("click", (event) => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(event.currentTarget.dataset.theme) + 1) % names.length];
    setTheme(next);
    try {
      localStorage.setItem("greenroom-theme", next);
    } catch {
      // it lasts until the page is loaded again
    }
  });
}

// ---- the keyboard

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "/" && !isTyping && route.shown?.search && !route.shown.search.hidden) {
    event.preventDefault();
    route.shown.search.focus();
    route.shown.search.select();
  } else if (event.key === "?" && !isTyping) {
    showKeys();
  } else if (event.key === "Escape") {
    if (isTyping && document.activeElement === route.shown?.search && document.activeElement.value) {
      document.activeElement.value = "";
      document.activeElement.dispatchEvent(new Event("input"));
    } else if (route.opened !== null) closePanel();
    else if (isTyping) document.activeElement.blur();
  }
});

const KEYS = [
  ["/", "search what is shown"],
  ["↓ ↑", "walk through a table, or from lane to lane of a timeline"],
  ["← →", "walk along a timeline"],
  ["Enter", "open what has the focus"],
  ["+ − 0", "zoom a timeline in, out, back"],
  ["Esc", "close the panel, clear the search"],
  ["?", "this list"],
];

function showKeys() {
  const dialog = document.getElementById("keys");
  if (!dialog.firstChild)
    dialog.append(
      panelHead(el("h2", { id: "keys-name" }, "Keys"), () => dialog.close()),
      el("dl", { class: "facts" }, KEYS.map(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])),
    );
  if (!dialog.open) dialog.showModal();
}
document.getElementById("help").addEventListener("click", showKeys);

// The skip link must not change the address, which says where one is.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

// ---- life: nothing is asked for and nothing is drawn while nobody looks

let ticking = 0;

function tick() {
  watchSilence();
  if (link.state === "lost") drawLink();
  if (!room.ready || link.state !== "live") return;
  route.shown?.tick?.();
  route.panel?.tick();
}

function wake() {
  if (document.hidden) {
    clearInterval(ticking);
    ticking = 0;
    closeStream();
  } else {
    ticking ||= setInterval(tick, 1000);
    openStream();
    changed("all");
  }
}

addEventListener("hashchange", () => {
  takeToken();
  follow();
});
document.addEventListener("visibilitychange", wake);
takeToken();
beginTheme();
drawFrame();
wake();
