// Uses the tools of a channel with the official MCP client for JavaScript, and prints what they return as JSON. make js
// runs it. Arguments: the member "mcp" of a delivery, as JSON.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const { url, headers } = JSON.parse(process.argv[2]);
const client = new Client({ name: 'test', version: '1' });
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
const { tools } = await client.listTools();
const call = async (name, args) => {
  const result = await client.callTool({ name, arguments: args });
  return result.isError ? { error: result.content[0].text } : result.structuredContent;
};
const answers = {
  tools: tools.map((tool) => tool.name).sort(),
  sent: await call('send_message', { content: 'Hello from JavaScript' }),
  refused: await call('send_message', { content: '' }),
  status: await call('set_status', { status: 'testing' }),
  messages: await call('get_messages', { limit: 1 }),
  roster: await call('get_roster', {}),
};
await client.close();
console.log(JSON.stringify(answers));
