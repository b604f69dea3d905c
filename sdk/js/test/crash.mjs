// A program that a test kills.
//   node crash.mjs agent RELAY FOLDER   prints "accepted" when it works; it does no work that FOLDER/slow lets wait
//   node crash.mjs client RELAY FOLDER THREAD   prints each step, and the output of the result
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Client, FileCursor, loadOrCreateKey } from '../node.js';

const [role, url, folder, thread] = process.argv.slice(2), file = (name) => join(folder, `${role}.${name}`);
const client = new Client(url, { me: await loadOrCreateKey(file('key')) });
if (role === 'agent') {
  console.log('ready', client.me.did);
  await client.serve('slow', { cursor: new FileCursor(file('cursor')), async work({ params }) {
    console.log('working');
    while (existsSync(join(folder, 'slow'))) await new Promise((resolve) => { setTimeout(resolve, 50); });
    return params + 1;
  } });
} else {
  const call = await client.request('slow', 41, { thread, maxCost: 1 });
  console.log('requested');
  if (!call.agent) await call.accept(await call.best('first'));
  console.log('accepted');
  const { output } = await call.result();
  console.log(`output ${output}`);
}
