// mcporter: what its runtime gives for a call, as its command line would print it.
import { createRuntime, createCallResult } from "mcporter";

const wish = JSON.parse(process.argv[2]);
const runtime = await createRuntime({
  servers: [{ name: "all", command: { kind: "stdio", command: wish.command, args: wish.arguments, cwd: process.cwd() } }],
});
try {
  const listed = (await runtime.listTools("all")).map((tool) => tool.name);
  const shown = [];
  for (const call of wish.calls) {
    const raw = await runtime.callTool("all", call.tool, { args: call.arguments });
    const result = createCallResult(raw);
    const json = result.json();
    shown.push({ is_error: Boolean(raw.isError), text: json === null ? result.text() ?? "" : JSON.stringify(json) });
  }
  console.log("\n" + JSON.stringify({ listed, shown }));
} finally {
  await runtime.close();
}
process.exit(0);
