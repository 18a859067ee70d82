// Tools and skills: found by words, and called with a form that is made from the schema.

const PAGE = 50; // tools that are read at a time
const PAUSE = 180; // ms between a key and the search

function toolsSection(where) {
  const head = sectionHead("Tools and skills");
  const server = where.query.get("server") ?? "";
  const list = el("ul", { class: "list" });
  const none = el("div", { class: "empty" });
  const more = el("button", { type: "button" }, "Show more");
  const place = el("div", { class: "placed" });
  const wanted = { query: "", found: [], total: null }; // `total`: null until the first answer
  const reading = { abort: null, timer: 0 };
  const search = searchField("Search tools", (text) => {
    wanted.query = text.trim();
    clearTimeout(reading.timer);
    reading.timer = setTimeout(read, PAUSE);
  });
  const only =
    server && el("p", {}, "Only those of ", serverLink(server), ". ", el("a", { href: "#/tools" }, "Show all"));
  const two = el(
    "div",
    { class: "two" },
    el("div", { class: "block" }, el("header", {}, search), only, list, none, more),
    place,
  );
  more.addEventListener("click", () => read(true));
  more.hidden = none.hidden = true;
  let shownTool = null;
  let readFor = "";

  async function read(isMore = false, limit = PAGE) {
    reading.abort?.abort();
    const abort = (reading.abort = new AbortController());
    try {
      const offset = isMore === true ? wanted.found.length : 0;
      const { tools, total } = await ask("tools", { server, query: wanted.query, offset, limit }, abort.signal);
      wanted.found = offset ? [...wanted.found, ...tools] : tools;
      wanted.total = total;
      drawList();
    } catch (error) {
      if (!abort.signal.aborted && error instanceof Refused) say(error.text, true); // else the stream says it
    }
  }

  /** What the servers have, as far as their rows tell. */
  const known = () =>
    JSON.stringify([...room.servers.values()].map((row) => [row.name, row.cached, row.toolCount, row.resourceCount, row.changed, row.disabled]));

  /** Read it again, because a server has other tools now. */
  async function readAgain() {
    await read(false, Math.min(500, Math.max(PAGE, wanted.found.length)));
    if (!shownTool || !place.shown) return;
    const name = shownTool;
    const now = await ask("tool", { name }).catch(() => null);
    if (shownTool !== name || JSON.stringify(now) === place.shown || place.querySelector(".outdated")) return;
    place.prepend(
      el(
        "p",
        { class: "notice warn outdated" },
        now === null ? "It is not there any more. " : "It is not as it is shown here any more. ",
        el("button", { type: "button", class: "small", on: { click: () => show(name) } }, "Show it as it is now"),
      ),
    );
  }

  /** How many tools there are, as the badge of this section counts them, and how much else is listed. */
  function countInWords() {
    if (wanted.query) return `${number(wanted.total)} found`;
    const tools = server ? (room.servers.get(server)?.toolCount ?? 0) : counts().tools;
    const others = wanted.total - tools;
    return counted(tools, "tool") + (others > 0 ? ` and ${counted(others, "skill, prompt or resource", "skills, prompts and resources")}` : "");
  }

  function drawList() {
    const isKnown = wanted.total !== null;
    setText(head.note, isKnown ? countInWords() : "Loading …");
    keyed(
      list,
      wanted.found,
      (tool) => `${tool.kind}\n${tool.name}`,
      (tool) =>
        el(
          "li",
          {},
          el(
            isDescribed(tool) ? "a" : "div",
            {
              href:
                isDescribed(tool) &&
                `#/tools/${encodeURIComponent(tool.name)}${server ? `?server=${encodeURIComponent(server)}` : ""}`,
            },
            el(
              "span",
              { class: "name" },
              named(tool.name),
              tool.kind !== "tool" && el("span", { class: "muted" }, ` ${oneLine(tool.kind, 20)}`),
            ),
            el("span", { class: "about" }, oneLine(tool.description || "It says nothing about itself.", 200)),
          ),
        ),
      (node, tool) =>
        setAttribute(node.firstChild, "aria-current", isDescribed(tool) && tool.name === shownTool && "true"),
    );
    none.hidden = !isKnown || wanted.found.length > 0;
    more.hidden = wanted.found.length >= wanted.total;
    none.replaceChildren(
      el("b", {}, wanted.query ? "Nothing fits." : "No tool is known."),
      wanted.query ? "Other words may find it." : "Tools are known when their server has been connected once.",
    );
  }

  async function show(name) {
    shownTool = name;
    drawList();
    two.classList.toggle("chosen", Boolean(name));
    if (!name) {
      place.replaceChildren();
      return;
    }
    place.shown = null;
    place.replaceChildren(el("p", { class: "muted" }, "Loading …"));
    try {
      const tool = await ask("tool", { name });
      if (shownTool !== name) return;
      place.shown = JSON.stringify(tool);
      place.replaceChildren(toolCard(tool, server));
    } catch (error) {
      place.shown = null;
      place.replaceChildren(
        el("p", { class: "notice warn" }, error instanceof Refused ? plain(error.text) : "The room does not answer."),
      );
    }
  }

  return {
    node: el("div", { class: "section" }, head.node, two),
    needs: ["servers"],
    search,
    server,
    begin() {
      readFor = known();
      read();
      show(where.rest);
    },
    end() {
      reading.abort?.abort();
      clearTimeout(reading.timer);
    },
    /** Another tool of the same list is gone to. */
    goTo: show,
    draw() {
      if (readFor === known()) return;
      readFor = known();
      readAgain();
    },
  };
}

/** Whether there is more to say of it than the list does: prompts and resources are not called here. */
const isDescribed = (tool) => tool.kind === "tool" || tool.kind === "skill";

const HINTS = {
  readOnlyHint: ["only reads", "may change things"],
  destructiveHint: ["may destroy", null],
  idempotentHint: ["may be repeated", null],
  openWorldHint: ["reaches beyond", null],
};

function toolCard(answer, server) {
  const given = answer.tool ?? answer.skill ?? answer;
  const hints = given.annotations ?? {};
  const tags = Object.entries(HINTS)
    .map(([key, [yes, no]]) => (hints[key] === true ? yes : hints[key] === false ? no : null))
    .filter(Boolean);
  const kind = given.kind ?? "tool";
  return el(
    "article",
    { class: "tool", "aria-label": "The tool" },
    el(
      "header",
      { class: "block" },
      el("a", { href: `#/tools${server ? `?server=${encodeURIComponent(server)}` : ""}`, class: "back" }, "All tools"),
      el("h2", {}, named(given.name, 400)),
      el(
        "div",
        { class: "tags" },
        el("span", { class: "tag" }, oneLine(kind, 20), " of ", serverLink(given.server ?? answer.server ?? "")),
        tags.map((tag) => el("span", { class: "tag" }, tag)),
      ),
      el("p", {}, plain(given.description || "It says nothing about itself.", 8000)),
      given.changed?.length > 0 &&
        el(
          "p",
          { class: "notice warn" },
          "Its definition has changed: it cannot be called until you have accepted that. ",
          el("a", { href: "#/changes" }, "See what changed"),
        ),
    ),
    kind === "tool" &&
      given.inputSchema &&
      !given.changed?.length &&
      (isOwner()
        ? callForm(given.name, given.inputSchema, answer.needsApproval === true)
        : el("p", { class: "muted" }, "To call it: ", command(typed("call", word(given.name), "'{…}'")))),
    given.inputSchema &&
      el(
        "details",
        {},
        el("summary", {}, "Its schema"),
        el("pre", { tabindex: "0" }, plain(JSON.stringify(given.inputSchema, null, 2), 50000)),
      ),
  );
}

// ---- the form

/** The form of a call. Fields it knows become fields; the rest is typed as JSON. `isHeld`: a person has to allow it. */
function callForm(name, schema, isHeld) {
  const fields = Object.entries(schema.properties ?? {})
    .slice(0, 60)
    .map(([key, each]) => schemaField(key, each ?? {}, (schema.required ?? []).includes(key)));
  fields.sort((one, other) => other.needed - one.needed);
  const asJson = el("textarea", { rows: 8, spellcheck: "false", "aria-label": "Arguments as JSON" });
  const byHand = el("div", { class: "field", hidden: true }, asJson);
  const inFields = el(
    "div",
    { class: "section" },
    fields.length ? fields.map((field) => field.node) : el("p", { class: "muted" }, "It takes no arguments."),
  );
  const turn = el("button", { type: "button", class: "quiet small" }, "Type JSON instead");
  const send = el("button", { type: "submit", class: "first" }, isHeld ? "Allow and call" : "Call");
  const wrong = el("p", { class: "wrong", role: "alert" });
  const result = el("div", { class: "block", "aria-live": "polite" });
  const form = el(
    "form",
    { novalidate: true, "aria-label": "Call" },
    inFields,
    byHand,
    isHeld && el("p", { class: "notice" }, "A person has to allow calls of this tool. Here that is you."),
    wrong,
    el("div", { class: "buttons" }, send, turn),
    result,
  );

  turn.addEventListener("click", () => {
    const toJson = byHand.hidden;
    if (toJson) asJson.value = JSON.stringify(read(true), null, 2);
    byHand.hidden = !toJson;
    inFields.hidden = toJson;
    setText(turn, toJson ? "Use the fields" : "Type JSON instead");
  });

  function read(isDraft = false) {
    const given = {};
    for (const field of fields) {
      const value = isDraft ? attempt(field.read) : field.read();
      if (value !== undefined)
        Object.defineProperty(given, field.key, { value, enumerable: true, writable: true, configurable: true });
    }
    return given;
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    setText(wrong, "");
    let given;
    try {
      given = byHand.hidden ? read() : JSON.parse(asJson.value || "{}");
    } catch (error) {
      setText(wrong, error instanceof WrongField ? error.message : `This is not JSON: ${plain(error.message)}`);
      error.field?.focus();
      return;
    }
    send.disabled = true;
    result.replaceChildren(el("p", { class: "muted" }, "It is being called …"));
    const began = performance.now();
    try {
      const answer = await act({ action: "call", tool: name, arguments: given, allow: isHeld });
      result.replaceChildren(...resultOf(answer.result ?? answer, (performance.now() - began) / 1000));
    } catch (error) {
      result.replaceChildren(
        el(
          "p",
          { class: "notice warn" },
          error instanceof Refused ? plain(error.text, 4000) : "The room does not answer. It may have ended.",
        ),
      );
    } finally {
      send.disabled = false;
    }
  });
  return form;
}

class WrongField extends Error {
  constructor(message, field) {
    super(message);
    this.field = field;
  }
}

function attempt(work) {
  try {
    return work();
  } catch {
    return undefined;
  }
}

const typeOf = (schema) =>
  (Array.isArray(schema.type) ? schema.type.find((each) => each !== "null") : schema.type) ??
  (schema.enum ? "string" : (schema.anyOf ?? schema.oneOf ?? []).map(typeOf).find((each) => each && each !== "null"));

let fieldCount = 0;

/** One argument's field: `{key, needed, node, read}`; `read` gives undefined for one that is left empty. */
function schemaField(key, schema, needed) {
  const id = `field-${(fieldCount += 1)}`;
  const type = typeOf(schema);
  const shown = oneLine(key, 120);
  const bounds = [
    schema.minimum != null && `At least ${schema.minimum}`,
    schema.maximum != null && `at most ${schema.maximum}`,
  ].filter(Boolean);
  const hint = [
    schema.description,
    bounds.length > 0 && `${bounds.join(", ")}.`,
    type === "array" && "One on each line.",
    (type === "object" || !type) && "As JSON.",
  ]
    .filter(Boolean)
    .join(" ");
  const about = { id, name: key.slice(0, 200), required: needed, "aria-describedby": hint && `${id}-hint` };
  let input;
  let read;
  const missing = () => {
    if (needed) throw new WrongField(`${shown} is needed.`, input);
    return undefined;
  };
  if (Array.isArray(schema.enum)) {
    input = el(
      "select",
      about,
      !needed && el("option", { value: "" }, "–"),
      schema.enum.map((each, place) =>
        el("option", { value: place, selected: each === schema.default }, oneLine(asText(each), 100)),
      ),
    );
    read = () => (input.value === "" ? missing() : schema.enum[Number(input.value)]);
  } else if (type === "boolean") {
    input = el("input", { ...about, required: false, type: "checkbox", checked: schema.default === true });
    read = () => (input.checked || needed || schema.default === true ? input.checked : undefined);
  } else if (type === "integer" || type === "number") {
    input = el("input", {
      ...about,
      inputmode: type === "integer" ? "numeric" : "decimal",
      autocomplete: "off",
      value: schema.default ?? null,
    });
    read = () => {
      if (input.value.trim() === "") return missing();
      const value = Number(input.value);
      if (!Number.isFinite(value) || (type === "integer" && !Number.isInteger(value)))
        throw new WrongField(`${shown} is to be ${type === "integer" ? "a whole number" : "a number"}.`, input);
      return value;
    };
  } else if (type === "string") {
    const isLong = /text|body|content|sql|code|message/i.test(key) && !schema.format;
    input = el(isLong ? "textarea" : "input", {
      ...about,
      autocomplete: "off",
      spellcheck: "false",
      rows: isLong && 3,
      value: isLong ? null : asText(schema.default) || null,
    });
    if (isLong) input.value = asText(schema.default);
    read = () => (input.value === "" ? missing() : input.value);
  } else {
    const item = typeOf(schema.items ?? {});
    input = el("textarea", { ...about, rows: type === "array" ? 2 : 3, spellcheck: "false" });
    if (schema.default !== undefined)
      input.value = type === "array" && item === "string" ? schema.default.join("\n") : asText(schema.default);
    read = () => {
      if (input.value.trim() === "") return missing();
      const lines = input.value.split("\n").filter((line) => line !== "");
      if (type === "array" && item === "string") return lines;
      try {
        return type === "array" && !input.value.trim().startsWith("[")
          ? lines.map((line) => JSON.parse(line))
          : JSON.parse(input.value);
      } catch {
        throw new WrongField(`${shown} is not JSON.`, input);
      }
    };
  }
  const label = el("label", { for: id }, el("bdi", {}, shown), needed && el("span", { class: "need" }, " needed"));
  const hintNode = hint && el("p", { class: "hint", id: `${id}-hint` }, plain(hint, 1000));
  const node =
    type === "boolean" && !schema.enum
      ? el("div", { class: "field check" }, input, label, hintNode)
      : el("div", { class: "field" }, label, hintNode, input);
  return { key, needed, node, read };
}

/** What a call has answered. */
function resultOf(answer, took) {
  const parts = (answer.content ?? []).map((each) => {
    if (each.type === "text") return el("pre", { tabindex: "0" }, plain(indented(each.text), 200000));
    if (each.type === "image" && /^image\/(png|jpeg|gif|webp)$/.test(each.mimeType ?? ""))
      return el("img", {
        class: "pictured",
        alt: "The picture that it answered",
        src: `data:${each.mimeType};base64,${each.data}`,
      });
    return el("pre", { tabindex: "0" }, plain(JSON.stringify(each, null, 2), 20000));
  });
  if (answer.mcpResult)
    parts.push(
      el(
        "details",
        {},
        el("summary", {}, "The rest of the result"),
        el("pre", { tabindex: "0" }, plain(JSON.stringify(answer.mcpResult, null, 2), 50000)),
      ),
    );
  const message = answer.message && !parts.length ? [el("p", {}, plain(answer.message, 4000))] : [];
  const state = answer.error
    ? el(
        "span",
        { class: "state failed" },
        mark("failed", "failed"),
        oneLine(String(answer.error).replaceAll("_", " ")),
      )
    : el("span", { class: "state connected" }, mark("done", "connected"), "answered");
  return [el("p", {}, state, el("span", { class: "muted" }, ` in ${duration(took)}`)), ...message, ...parts];
}

function indented(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
