// Perfetto's trace processor in WASM, as its web page runs it: a worker with the engine, spoken to through a port.
// node perfetto.mjs FOLDER TRACE SQL…: prints the rows of each query as one line of JSON, with the columns' names.
import { readFileSync } from "node:fs";
import { MessageChannel, Worker } from "node:worker_threads";
import { pathToFileURL } from "node:url";

const [folder, trace, ...queries] = process.argv.slice(2);
const { EngineBase } = await import(pathToFileURL(`${folder}/engine.mjs`).href);

// What the engine finds in a browser's worker, and Node lacks: its global names, and the file beside it.
const WORKER = `
  const { parentPort, workerData: folder } = require("node:worker_threads");
  const { readFileSync } = require("node:fs");
  Object.assign(globalThis, {
    self: globalThis,
    WorkerGlobalScope: class {},
    importScripts() {},
    location: { href: folder + "/" },
    XMLHttpRequest: class {
      open(method, name) { this.name = name; }
      send() {
        const data = readFileSync(folder + "/" + this.name);
        this.status = 200;
        this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
        this.onload?.();
      }
    },
  });
  (0, eval)(readFileSync(folder + "/engine_bundle.node.js", "utf8"));
  parentPort.once("message", (port) => self.onmessage({ data: port }));
`;

class Engine extends EngineBase {
  constructor(port) {
    super();
    this.port = port;
    port.on("message", (data) => this.onRpcResponseBytes(data));
  }
  rpcSendRequestBytes(data) {
    this.port.postMessage(data);
  }
}

const worker = new Worker(WORKER, { eval: true, workerData: folder, stdout: true, stderr: true });
worker.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
console.warn = () => {}; // of the columns that its decoder does not know
const { port1, port2 } = new MessageChannel();
worker.postMessage(port1, [port1]);
const engine = new Engine(port2);
await engine.parse(new Uint8Array(readFileSync(trace)));
await engine.notifyEof();
for (const query of queries) {
  const result = await engine.query(query);
  if (result.error()) throw new Error(result.error());
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    const cell = (name) => (typeof row.get(name) === "bigint" ? Number(row.get(name)) : row.get(name));
    rows.push(Object.fromEntries(result.columns().map((name) => [name, cell(name)])));
  }
  console.log(JSON.stringify(rows));
}
process.exit(0);
