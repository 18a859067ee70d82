// The room as a tree: what `greenroom tree` prints, read again while it is shown.

const TREE_AGAIN = 1000; // ms between two readings
// The states of a node, and how they are marked; a server has those of the overview.
const TREE_MARKS = {
  connected: "connected",
  connecting: "connecting",
  draining: "draining",
  closing: "draining",
  failed: "failed",
  lost: "failed",
  broken: "failed",
  down: "failed",
  "needs auth": "person",
  untrusted: "person",
  disabled: "disabled",
  idle: "ring",
  cached: "ring",
  "not connected": "ring",
  waiting: "connecting",
  installing: "connecting",
};

function treeSection() {
  const head = sectionHead("Tree", "Loading …");
  const list = el("ul", { class: "tree", "aria-label": "The room" });
  const abort = new AbortController();
  let readAt = 0;
  let isReading = false;
  let shown = [];

  async function read() {
    if (isReading) return;
    isReading = true;
    readAt = Date.now();
    try {
      show((await ask("tree", {}, abort.signal)).nodes);
    } catch (error) {
      if (!abort.signal.aborted && error instanceof Refused) say(error.text, true); // else the stream says it
    } finally {
      isReading = false;
    }
  }

  function show(nodes) {
    shown = nodes;
    let server = "";
    for (const node of nodes) {
      if (node.kind === "server") server = node.name;
      node.key = `${node.level} ${node.level > 2 ? server : ""} ${node.kind} ${node.name}`;
    }
    keyed(list, nodes, (node) => node.key, makeNode, updateNode);
    setText(head.note, counted(nodes.filter((node) => node.kind === "server").length, "server"));
  }

  function makeNode(node) {
    const name = node.kind === "server" ? serverLink(node.name) : el("b", {}, named(node.kind === "more" ? "" : `${node.kind} ${node.name}`.trim()));
    const item = el("li", { class: node.kind }, name, " ", el("span"), " ", el("span", { class: "muted" }));
    item.style.setProperty("--level", String(node.level));
    return item;
  }

  function updateNode(item, node) {
    const [, state, said] = item.children;
    const row = node.kind === "server" ? room.servers.get(node.name) : undefined;
    if (row) {
      setState(state, row);
    } else if (state.said !== node.state) {
      const kind = TREE_MARKS[node.state];
      setAttribute(state, "class", `state ${kind ?? ""}`);
      state.replaceChildren(...(kind ? [mark(kind, kind)] : []), oneLine(node.state, 40));
      state.said = node.state;
    }
    setText(said, oneLine(node.said).replace(/(\d) (?=m?s\b|min\b|h\b)/g, "$1\u00a0"));
  }

  return {
    node: el("div", { class: "section" }, head.node, el("section", { class: "block", "aria-label": "Tree" }, list)),
    needs: ["servers"],
    begin: read,
    end: () => abort.abort(),
    draw() {
      if (shown.length) show(shown);
    },
    tick() {
      if (Date.now() - readAt >= TREE_AGAIN) read();
    },
  };
}
