// An EventSource of the browser, which reads a stream of the relay. The relay's web page itself polls.
import assert from 'node:assert/strict';
import test from 'node:test';
import { isRefusal, openPage, until } from './lib/browser.mjs';
import { newAgent } from './lib/messages.mjs';
import { restart, startRelay } from './lib/relay.mjs';

/** Opens an EventSource in the page. read returns the ids of the messages that it has got. */
async function follow(page, url) {
  await page.evaluate((url) => {
    globalThis.got = [];
    globalThis.source = new EventSource(url);
    globalThis.source.onmessage = (e) => globalThis.got.push(JSON.parse(e.data).id);
    globalThis.source.addEventListener('open', () => { globalThis.opened = (globalThis.opened ?? 0) + 1; });
  }, url);
  return {
    read: () => page.evaluate(() => globalThis.got),
    opened: (times) => until(`${times} connections`, () => page.evaluate((n) => globalThis.opened >= n, times)),
  };
}

test('an EventSource gets each message once, through restarts of the relay', async (t) => {
  const relay = await startRelay(t), alice = await newAgent(relay);
  const page = await openPage(t, relay.url, { allow: isRefusal });
  const stream = await follow(page, '/events');
  await stream.opened(1);
  await relay.stop(); // before the first message: the browser continues with the id that the stream begins with
  const again = await restart(t, relay);
  const sent = [(await alice.ask()).id];
  await stream.opened(2);
  sent.push((await alice.ask()).id);
  await until('two messages', async () => (await stream.read()).length >= 2);
  await again.kill();
  await restart(t, relay);
  sent.push((await alice.ask()).id);
  await stream.opened(3);
  sent.push((await alice.ask()).id);
  await until('four messages', async () => (await stream.read()).length >= 4);
  assert.deepEqual(await stream.read(), sent);
});

test('an EventSource of an allowed origin reads from another relay', async (t) => {
  const here = await startRelay(t), relay = await startRelay(t, { flags: ['--cors-origin', here.url] });
  const page = await openPage(t, here.url, { allow: (what) => what.startsWith(`request: ${relay.url}`), bypassCSP: true });
  const stream = await follow(page, `${relay.url}/events?cursor=0`);
  await stream.opened(1);
  const { id } = await (await newAgent(relay)).ask();
  await until('the message', async () => (await stream.read()).length >= 1);
  assert.deepEqual(await stream.read(), [id]);  // the stream ends with the page
});
