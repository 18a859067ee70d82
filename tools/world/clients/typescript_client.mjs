// The TypeScript SDK.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const wish = JSON.parse(process.argv[2]);
const client = new Client({ name: "world", version: "1" });
await client.connect(new StdioClientTransport({ command: wish.command, args: wish.arguments }));
const listed = (await client.listTools()).tools.map((tool) => tool.name);
const shown = [];
for (const call of wish.calls) {
  const result = await client.callTool({ name: call.tool, arguments: call.arguments });
  const text = result.content.map((block) => block.text ?? "").join("\n");
  shown.push({ is_error: Boolean(result.isError), text });
}
console.log("\n" + JSON.stringify({ listed, shown }));
await client.close();
