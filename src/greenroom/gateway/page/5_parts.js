// Parts that sections share: a table that holds only the rows in sight, and the strip of a server's last quarter of an hour.

const SPARE = 8; // rows beyond what is seen, above and below, at least
const STEP = 8; // rows that come and go together

/**
 * A table of any length that scrolls with the page. `columns`: `{key, head, order?, class?, numeric?, width?, make, update}`;
 * `make()` gives what stands in a cell, and `update(cell, item)` fills it. `order(item)` is what the column is sorted by.
 * One row can be walked to with the arrow keys: the one whose link has `tabindex` 0.
 *
 * Rows are boxes of one height that contain their layout (`page.css`), and a row that leaves is filled again for one that
 * comes: to lay out a real table for each step of scrolling takes ten times as long. So the roles of a table are said.
 */
class Table {
  constructor({ label, columns, keyOf, rowClass, open, empty }) {
    Object.assign(this, { columns, keyOf, rowClass, open, emptySaid: empty });
    this.items = [];
    this.sorted = null; // `{key, falling}`
    this.active = 0;
    this.drawn = new Map();
    this.rowHeight = 0;
    this.free = [];
    this.above = el("div", { role: "none" });
    this.below = el("div", { role: "none" });
    this.rows = el("div", { class: "rows", role: "rowgroup" });
    this.heads = columns.map((column) => this.#head(column));
    this.top = el(
      "div",
      { class: "head", role: "rowgroup" },
      el("div", { role: "row", "aria-rowindex": 1 }, this.heads),
    );
    this.table = el(
      "div",
      { class: "table", role: "table", "aria-label": label },
      this.top,
      this.above,
      this.rows,
      this.below,
    );
    this.blank = el("div", { class: "empty", hidden: true });
    this.node = el("div", { class: "tabled" }, this.table, this.blank);
    this.rows.addEventListener("keydown", (event) => this.#walk(event));
    this.rows.addEventListener("focusin", (event) => {
      const place = Number(event.target.closest("[role=row]")?.dataset.place);
      if (place >= 0) this.#activate(place);
    });
    if (open)
      this.rows.addEventListener("click", (event) => {
        const row = event.target.closest("[role=row]");
        if (row && !event.target.closest("a, button") && !getSelection().toString())
          open(this.items[Number(row.dataset.place)]);
      });
    this.onScroll = () => {
      this.frame ||= requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
    };
  }

  /** Begin to follow the page's scrolling; the answer ends it. */
  follow() {
    addEventListener("scroll", this.onScroll, { passive: true });
    addEventListener("resize", this.onScroll);
    return () => {
      removeEventListener("scroll", this.onScroll);
      removeEventListener("resize", this.onScroll);
      cancelAnimationFrame(this.frame);
      this.frame = 0;
    };
  }

  #head(column) {
    const head = sized(el("div", { role: "columnheader", class: kindsOf(column) }), column);
    if (!column.order) {
      head.append(column.head);
      return head;
    }
    head.setAttribute("aria-sort", "none");
    head.append(el("button", { type: "button", on: { click: () => this.#sortBy(column, head) } }, column.head));
    return head;
  }

  #sortBy(column, head) {
    const first = Boolean(column.numeric);
    const was = this.sorted?.key === column.key ? this.sorted.falling : null;
    this.sorted =
      was === null ? { key: column.key, falling: first } : was === first ? { key: column.key, falling: !first } : null;
    for (const each of this.heads) if (each.hasAttribute("aria-sort")) each.setAttribute("aria-sort", "none");
    if (this.sorted) head.setAttribute("aria-sort", this.sorted.falling ? "descending" : "ascending");
    this.set(this.given);
  }

  /** Show these, in the order that is chosen. */
  set(items, empty = undefined) {
    this.given = items;
    this.items = this.#ordered(items);
    if (empty !== undefined) this.emptySaid = empty;
    this.active = Math.min(this.active, Math.max(0, this.items.length - 1));
    setAttribute(this.table, "aria-rowcount", this.items.length + 1);
    this.table.hidden = !this.items.length;
    this.blank.hidden = this.items.length > 0;
    if (!this.items.length) this.blank.replaceChildren(el("b", {}, this.emptySaid[0]), this.emptySaid[1] ?? "");
    this.draw(true);
  }

  #ordered(items) {
    if (!this.sorted) return items;
    const { order } = this.columns.find((column) => column.key === this.sorted.key);
    const turn = this.sorted.falling ? -1 : 1;
    const keys = new Map(items.map((item) => [item, order(item)]));
    return [...items].sort((one, other) => {
      const [a, b] = [keys.get(one), keys.get(other)];
      if (a == null || b == null) return (a == null) - (b == null);
      return turn * (typeof a === "string" ? a.localeCompare(b) : a - b);
    });
  }

  /** Draw the rows in sight. `fresh`: their items have changed, too. */
  draw(fresh = false) {
    if (!this.node.isConnected || this.table.hidden) return;
    const height = this.#measured();
    const top = this.top.getBoundingClientRect().bottom;
    const start = this.above.getBoundingClientRect().top;
    const unseen = Math.max(0, Math.max(top, 0) - start);
    const first = Math.max(0, Math.min(this.items.length - 1, STEP * Math.floor(unseen / height / STEP) - SPARE));
    const last = Math.min(this.items.length, STEP * Math.ceil((unseen + innerHeight) / height / STEP) + SPARE);
    if (!fresh && first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    const kept = new Map();
    const free = this.#leaving(first, last);
    let place = this.rows.firstChild;
    for (let index = first; index < last; index++) {
      const item = this.items[index];
      const key = this.keyOf(item);
      let row = this.drawn.get(key);
      const isNew = row === undefined || kept.has(key);
      if (isNew) row = free.pop() ?? this.#make();
      kept.set(key, row);
      if (isNew || fresh || row.dataset.place !== String(index)) this.#fill(row, item, index);
      if (row === place) place = place.nextSibling;
      else this.rows.insertBefore(row, place);
    }
    const hadFocus = this.rows.contains(document.activeElement);
    while (place !== null) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
    this.drawn = kept;
    this.above.style.setProperty("height", `${first * height}px`);
    this.below.style.setProperty("height", `${(this.items.length - last) * height}px`);
    if (hadFocus && !this.rows.contains(document.activeElement)) this.#focus(this.active);
  }

  /** The rows of items that are not among these any more, to be filled again; not the one with the focus. */
  #leaving(first, last) {
    const coming = new Set();
    for (let index = first; index < last; index++) coming.add(this.keyOf(this.items[index]));
    const leaving = [];
    for (const [key, row] of this.drawn)
      if (!coming.has(key) && !row.contains(document.activeElement)) leaving.push(row);
    return leaving;
  }

  #measured() {
    const height = this.rows.firstChild?.getBoundingClientRect().height;
    if (height) this.rowHeight = height;
    return this.rowHeight || parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) || 40;
  }

  #make() {
    const cells = this.columns.map((column) =>
      sized(el("div", { role: "cell", class: kindsOf(column) }, column.make?.()), column),
    );
    return el("div", { role: "row" }, cells);
  }

  #fill(row, item, index) {
    row.dataset.place = index;
    setAttribute(row, "aria-rowindex", index + 2);
    setAttribute(row, "class", [this.rowClass?.(item), this.open && "opens"].filter(Boolean).join(" ") || null);
    this.columns.forEach((column, place) => column.update(row.children[place], item));
    const target = row.querySelector("a");
    if (target) target.tabIndex = index === this.active ? 0 : -1;
  }

  #activate(index) {
    if (index === this.active) return;
    for (const row of this.rows.children) {
      const target = row.querySelector("a");
      if (target) target.tabIndex = Number(row.dataset.place) === index ? 0 : -1;
    }
    this.active = index;
  }

  #walk(event) {
    const page = Math.max(1, Math.floor(innerHeight / this.#measured()) - 3);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.#focus(Math.max(0, Math.min(this.items.length - 1, this.active + steps[event.key])));
  }

  #focus(index) {
    const height = this.#measured();
    const head = this.top.getBoundingClientRect().height;
    const stuck = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--head")) || 0;
    const start = this.table.getBoundingClientRect().top + scrollY + head;
    const top = start + index * height;
    if (top < scrollY + stuck + head) scrollTo({ top: Math.max(0, top - stuck - head), behavior: "instant" });
    else if (top + height > scrollY + innerHeight)
      scrollTo({ top: top + height - innerHeight + 8, behavior: "instant" });
    this.#activate(index);
    this.draw();
    const row = [...this.rows.children].find((each) => Number(each.dataset.place) === index);
    row?.querySelector("a")?.focus({ preventScroll: true });
  }

  /** Put the focus on the row of this key, if it is among the items. */
  focusKey(key) {
    const index = this.items.findIndex((item) => this.keyOf(item) === key);
    if (index >= 0) this.#focus(index);
    return index >= 0;
  }
}

const kindsOf = (column) => [column.class, column.numeric && "number"].filter(Boolean).join(" ") || null;

/** A cell as wide as its column: so many pixels or per cent, or a share of what is left. */
function sized(cell, { width }) {
  if (width) cell.style.setProperty("flex", `0 0 ${/%$/.test(width) ? width : `${width}px`}`);
  return cell;
}

/** A cell of plain text; what it shows is `text(item)`. */
const textColumn = (key, head, text, more = {}) => ({
  key,
  head,
  update: (cell, item) => {
    const said = text(item);
    setText(cell, said);
    if (more.titled) setAttribute(cell, "title", said || null);
  },
  ...more,
});

/** A cell with a number, of which nought is quiet. */
const numberColumn = (key, head, value, more = {}) => ({
  key,
  head,
  numeric: true,
  order: value,
  update: (cell, item) => {
    const said = value(item);
    setText(cell, said == null ? "" : (more.said ?? number)(said));
    cell.classList.toggle("zero", said === 0);
  },
  ...more,
});

// ---- the strip

const STRIP = ["s-idle", "s-connected", "s-busy", "s-failed", "c-good", "c-bad"];

/** A quarter of an hour of a server: a line of its states, bars of its calls above it, and a stroke for each failure. */
function makeStrip() {
  const strip = svg("svg", { class: "strip", viewBox: `0 0 ${WINDOW} 22`, preserveAspectRatio: "none", role: "img" });
  for (const kind of STRIP) strip.append(svg("path", { class: kind }));
  strip.append(svg("title"));
  return strip;
}

const box = (left, top, width, height) =>
  `M${left.toFixed(0)} ${top.toFixed(1)}h${width.toFixed(0)}v${height.toFixed(1)}h${(-width).toFixed(0)}z`;

/** Draw it. `height` is that of its `viewBox`. Returns how many calls the highest bar stands for. */
function drawStrip(strip, row, height = 22) {
  const at = now();
  const start = at - WINDOW;
  const base = height - 3;
  const paths = Object.fromEntries(STRIP.map((kind) => [kind, ""]));
  const moves = room.moves.get(row.name) ?? [];
  const x = (moment) => Math.max(0, Math.min(WINDOW, moment - start));
  const line = (state, from, to) => {
    const kind =
      state === "connected" ? "s-connected" : state === "connecting" || state === "draining" ? "s-busy" : "s-idle";
    if (to > start) paths[kind] += box(x(from), base, Math.max(x(to) - x(from), 3), 3);
  };
  let state = moves[0]?.from ?? row.state;
  let since = Math.min(room.knownSince ?? at, moves[0]?.at ?? at);
  if (since > start) paths["s-idle"] += box(0, base + 1, x(since), 1);
  let failures = 0;
  for (const move of moves) {
    line(state, since, move.at);
    if (move.at > start && isFailure(move)) {
      failures += 1;
      paths["s-failed"] += box(x(move.at) - 4, 2, 8, base - 4);
    }
    [state, since] = [move.whole, move.at];
  }
  line(furthest([row.state, ...row.addresses.map((each) => each.state)]), since, at);
  const bars = room.bars.get(row.name)?.read(at) ?? [];
  const busiest = Math.max(0, ...bars.map(([good, bad]) => good + bad));
  const most = Math.max(4, busiest);
  const tallest = base - 4;
  let calls = 0;
  bars.forEach(([good, bad], place) => {
    if (!good && !bad) return;
    calls += good + bad;
    const left = Math.max(0, (place + 1) * BIN - (at % BIN) - 1);
    const share = (count) => (count / most) * tallest;
    if (good) paths["c-good"] += box(left, base - 2 - share(good + bad), 11, share(good));
    if (bad) paths["c-bad"] += box(left, base - 2 - share(bad), 11, share(bad));
  });
  STRIP.forEach((kind, place) => setAttribute(strip.childNodes[place], "d", paths[kind] || null));
  const failed = failures ? `, ${counted(failures, "failure")}` : "";
  const said = `Last 15 minutes: ${counted(calls, "call")}${failed}`;
  setAttribute(strip, "aria-label", said);
  const scale = calls ? `, the highest bar ${number(busiest)} in ${BIN} s` : "";
  strip.lastChild.textContent = said + scale;
  return busiest;
}

const isFailure = (move) => ["failed to connect", "lost", "failed: bug"].includes(move.cause);

// ---- smaller things

/** A line of figures: `[[label, value, kind?], …]`. */
function figures() {
  const node = el("dl", { class: "figures" });
  return {
    node,
    set(values) {
      keyed(
        node,
        values,
        ([label]) => label,
        () => el("div", {}, el("dt"), el("dd")),
        (each, [label, value, kind, more]) => {
          setAttribute(each, "class", kind || (value === "0" ? "none" : null));
          setText(each.firstChild, label);
          const said = `${value}\n${more ?? ""}`;
          if (each.said !== said) {
            each.said = said;
            each.lastChild.replaceChildren(String(value), ...(more ? [el("small", {}, ` ${more}`)] : []));
          }
        },
      );
    },
  };
}

/** A field that searches while one types. */
function searchField(label, onInput) {
  const field = el("input", {
    class: "search",
    type: "search",
    placeholder: label,
    "aria-label": label,
    "aria-keyshortcuts": "/",
    autocomplete: "off",
    spellcheck: "false",
  });
  field.addEventListener("input", () => onInput(field.value));
  return field;
}

function sectionHead(title, about = null) {
  const note = el("p", {}, about);
  return { node: el("header", {}, el("h1", { tabindex: "-1" }, title), note), note };
}

const serverAddress = (name) => `#/servers/${encodeURIComponent(name)}`;
const serverLink = (name) => el("a", { href: serverAddress(name) }, named(name));

/** The head of a panel, with what closes it. */
function panelHead(title, close, ...parts) {
  return el(
    "header",
    {},
    el(
      "div",
      {},
      title,
      el(
        "button",
        { class: "quiet close", type: "button", "aria-label": "Close", title: "Close (Escape)", on: { click: close } },
        icon("close"),
      ),
    ),
    ...parts,
  );
}
