// How a definition was and how it is now, part by part: only what is not the same, with the way to it in words.

const MOST_CHANGES = 200; // lines
// Steps of a way through a schema that say nothing, and those that have a word of their own.
const SILENT_STEPS = new Set(["properties", "$defs", "definitions", "patternProperties"]);
const STEPS = { inputSchema: "input", outputSchema: "output", items: "each item", additionalProperties: "other members" };

/** What has changed, as lines; `parts` if nobody knows how it was. */
function changedParts(was, is, parts) {
  const changes = was == null ? [] : changesBetween(was, is, []);
  if (!changes.length)
    return el(
      "p",
      {},
      `${was == null ? "What it was is not known any more." : "It cannot be told line by line."} What has changed: `,
      parts.map((each, place) => [place > 0 && ", ", el("b", {}, named(each))]),
    );
  const lines = changes.slice(0, MOST_CHANGES).map(makeChange);
  if (changes.length > MOST_CHANGES)
    lines.push(el("li", {}, `and ${number(changes.length - MOST_CHANGES)} more: see the whole definition`));
  return el("ul", { class: "diff", tabindex: "0", "aria-label": "What has changed" }, lines);
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isPlainList = (value) => Array.isArray(value) && value.every((each) => each === null || typeof each !== "object");
const isSame = (one, other) =>
  one === other ||
  (Array.isArray(one) && Array.isArray(other) && one.length === other.length && one.every((each, place) => isSame(each, other[place]))) ||
  (isObject(one) && isObject(other) && [one, other].every((each) => Object.keys(each).every((key) => isSame(one[key], other[key]))));

/** The changes from one value to another: `{way, was, is}`, of which `was` or `is` is undefined if it is not there. */
function changesBetween(was, is, way) {
  if (isSame(was, is)) return [];
  if (isObject(was) && isObject(is))
    return [...new Set([...Object.keys(was), ...Object.keys(is)])].flatMap((key) =>
      changesBetween(was[key], is[key], [...way, key]),
    );
  if (isPlainList(was) && isPlainList(is)) {
    const changes = [
      ...was.filter((each) => !is.includes(each)).map((each) => ({ way, was: each, isMember: true })),
      ...is.filter((each) => !was.includes(each)).map((each) => ({ way, is: each, isMember: true })),
    ];
    return changes.length ? changes : [{ way, was, is }];
  }
  if (Array.isArray(was) && Array.isArray(is))
    return Array.from({ length: Math.max(was.length, is.length) }, (_, place) =>
      changesBetween(was[place], is[place], [...way, String(place + 1)]),
    ).flat();
  return [{ way, was, is }];
}

/** The steps of a way in words. What follows a silent step is a name that the server gave. */
function wayInWords(way) {
  const steps = [];
  let isName = false;
  for (const step of way) {
    const isSilent = !isName && SILENT_STEPS.has(step);
    if (!isSilent) steps.push(!isName && Object.hasOwn(STEPS, step) ? STEPS[step] : step);
    isName = isSilent;
  }
  return steps;
}

function makeChange({ way, was, is, isMember }) {
  const steps = wayInWords(way);
  const kind = was === undefined ? "new" : is === undefined ? "old" : "other";
  const word = { new: isMember ? "added" : "new", old: isMember ? "taken out" : "gone", other: "changed" }[kind];
  const [before, after] =
    typeof was === "string" && typeof is === "string"
      ? changedWords(was, is)
      : [was === undefined ? null : valueInWords(was), is === undefined ? null : valueInWords(is)];
  return el(
    "li",
    { class: kind },
    el(
      "p",
      { class: "way" },
      steps.map((step, place) => [place > 0 && el("span", { class: "muted" }, " › "), named(step, 200)]),
      el("span", { class: "tag" }, word),
    ),
    before !== null && el("p", { class: "before" }, el("span", { class: "unseen" }, "before: "), before),
    after !== null && el("p", { class: "after" }, el("span", { class: "unseen" }, "now: "), after),
  );
}

/** A value as it can be read: a line for each member, without braces and quotation marks. */
const valueInWords = (value) => plain(typeof value === "string" ? value : linesOf(value).join("\n"), 20_000);

function linesOf(value) {
  if (value === null || typeof value !== "object") return [String(value)];
  if (isPlainList(value)) return [value.join(", ") || "nothing"];
  const lines = Object.entries(value).flatMap(([key, each]) => {
    const [first, ...more] = linesOf(each);
    return more.length || isObject(each) ? [`${key}:`, ...[first, ...more].map((line) => `  ${line}`)] : [`${key}: ${first}`];
  });
  return lines.length ? lines : ["nothing"];
}

// ---- words of two texts

const MOST_WORDS = 600;

/** Two texts as children of an element each, in which the words that are not in the other are marked. */
function changedWords(was, is) {
  const [old, now] = [was, is].map((text) => plain(text, 20_000).match(/^\s+|\S+\s*/g) ?? []);
  if (old.length > MOST_WORDS || now.length > MOST_WORDS) return [[old.join("")], [now.join("")]];
  const common = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i--)
    for (let j = now.length - 1; j >= 0; j--)
      common[i][j] = old[i] === now[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const [gone, come] = [[], []];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      gone.push([false, old[i++]]);
      come.push([false, now[j++]]);
    } else if (j >= now.length || (i < old.length && common[i + 1][j] >= common[i][j + 1])) gone.push([true, old[i++]]);
    else come.push([true, now[j++]]);
  }
  return [gone, come].map(markedWords);
}

/** Words that follow each other with the same mark are one. */
function markedWords(words) {
  const runs = [];
  for (const [isMarked, text] of words) {
    const last = runs.at(-1);
    if (last && last[0] === isMarked) last[1] += text;
    else runs.push([isMarked, text]);
  }
  return runs.map(([isMarked, text]) => {
    const word = text.trimEnd();
    return isMarked && word ? [el("mark", {}, word), text.slice(word.length)] : text;
  });
}
