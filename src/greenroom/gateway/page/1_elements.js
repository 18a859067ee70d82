// The page of a room, in plain JavaScript: what is read is a stream of what has changed, what is kept is one model
// (`room`), and each section draws what it shows from it. The files are joined in the order of their names.
//
// Elements are made here and only here. What comes from outside is always a text node or an attribute's value, never
// markup: servers may call themselves what they like.

/** An element. `props`: `class`, `on` (listeners), and attributes; null and false leave an attribute out. */
function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else setAttribute(made, key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return made;
}

function setAttribute(node, key, value) {
  const had = node.getAttribute(key);
  if (value == null || value === false) {
    if (had !== null) node.removeAttribute(key);
  } else {
    const text = value === true ? "" : String(value);
    if (had !== text) node.setAttribute(key, text);
  }
}

/** The same element with another text; nothing is touched if it is the same. */
function setText(node, text) {
  const said = String(text);
  if (node.firstChild?.nodeType === Node.TEXT_NODE && node.childNodes.length === 1) {
    if (node.firstChild.data !== said) node.firstChild.data = said;
  } else node.textContent = said;
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, props = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(props)) setAttribute(made, key, value);
  made.append(...children);
  return made;
}

const icon = (name) => svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `#icon-${name}` }));

/** A mark of a state. Its shapes are copied: thousands of `use` would each be a tree of their own. */
function mark(name, kind) {
  const shapes = document.getElementById(`mark-${name}`).cloneNode(true).childNodes;
  return svg("svg", { class: `mark ${kind}`, viewBox: "0 0 16 16", "aria-hidden": "true" }, ...shapes);
}

/** Make the children of `parent` those of `items`, in order. An item's element stays the same while its key does. */
function keyed(parent, items, keyOf, make, update) {
  const had = (parent.keyedChildren ??= new Map());
  const kept = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    let node = had.get(key);
    if (node === undefined || kept.has(key)) node = make(item);
    kept.set(key, node);
    update?.(node, item);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  while (place !== null) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
  parent.keyedChildren = kept;
}

// Characters that nobody sees, or that turn the text around them.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udfff]/g;
const LONGEST = 400;

/** A text from outside as it may be shown: unseen characters by their numbers, and not longer than `most`. */
function plain(text, most = LONGEST) {
  if (text == null) return "";
  const said = String(text);
  const cut = said.length > most ? `${said.slice(0, most)}…` : said;
  return cut.replace(UNSEEN, (char) => `⟨${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

const oneLine = (text, most) =>
  plain(
    String(text ?? "")
      .replace(/\s+/g, " ")
      .trim(),
    most,
  );

/** A name from outside, kept apart from the direction of the text around it. */
const named = (text, most = 120) => el("bdi", {}, oneLine(text, most));

/** A name from outside as a word of a shell, and never as an option: a command with it can be copied. */
const word = (name) => {
  const quoted = /^[\w@%+=:,./-]+$/.test(name) ? name : `'${name.replaceAll("'", `'"'"'`)}'`;
  return name.startsWith("-") ? `-- ${quoted}` : quoted;
};

/** A command of ours as it is typed for this gateway, with the options that it needs. */
const typed = (verb, ...more) => [room.hello?.commands?.[verb] ?? `greenroom ${verb}`, ...more].join(" ");

/** A command to run elsewhere, which can be copied. */
function command(text) {
  const copy = el(
    "button",
    { class: "quiet", type: "button", "aria-label": "Copy the command", title: "Copy" },
    icon("copy"),
  );
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied.");
    } catch {
      say("The browser does not let this page copy. Mark the command and copy it yourself.", true);
    }
  });
  return el("span", { class: "command", title: plain(text, 600) }, named(text, 600), copy);
}

const said = document.getElementById("said");

/** Say one sentence at the edge of the window, for some seconds; what went wrong stays until it is closed. */
function say(text, isBad = false) {
  const line = el("p", { class: isBad && "bad" }, el("span", {}, plain(text, 1000)));
  if (isBad)
    line.append(
      el("button", { type: "button", "aria-label": "Close", on: { click: () => line.remove() } }, icon("close")),
    );
  else setTimeout(() => line.remove(), 5000);
  said.append(line);
  while (said.childElementCount > 4) said.firstChild.remove();
}

/** Tell a screen reader, and nobody else. */
function tell(text) {
  setText(document.getElementById("told"), text);
}
