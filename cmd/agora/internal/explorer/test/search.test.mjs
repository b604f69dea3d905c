// The search field finds ids, DIDs and threads, and verifies envelopes.
import assert from 'node:assert/strict';
import test from 'node:test';
import { connection, goTo, isRefusal, message, openPage, says, see, until } from './lib/browser.mjs';
import { newAgent, seed } from './lib/messages.mjs';
import { startProxy, startRelay } from './lib/relay.mjs';

const search = async (page, text) => {
  await page.fill('#search', text);
  await page.press('#search', 'Enter');
};

const paste = async (page, text) => {
  await page.focus('#search');
  await page.evaluate((data) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData('text/plain', data);
    const event = new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true });
    if (document.activeElement.dispatchEvent(event)) document.activeElement.value = data;
  }, text);
};

test('search by id, DID and thread', async (t) => {
  const relay = await startRelay(t);
  const { alice, bob, done } = await seed(relay);
  const lone = await alice.ask();
  const page = await openPage(t, relay.url, { allow: isRefusal }); // of /threads/no-such-id
  await connection(page, 'live');
  await search(page, lone.id);
  await see(page, message(lone, '[data-verified="true"]'));
  await page.keyboard.press('Escape');
  await search(page, `  ${bob.did} `);
  await page.waitForURL((url) => decodeURIComponent(url.hash) === `#/agent/${bob.did}`);
  await search(page, done.id);
  await page.waitForURL((url) => url.hash.startsWith(`#/thread/${done.id}`));
  await see(page, `[data-thread="${done.id}"]`);
  await search(page, 'no-such-id');
  await says(page, 'main', /no-such-id/);
  await search(page, 'did:web:example.com/not-a-key');
  await see(page, 'main [role="alert"] >> text=did:key');
  assert.equal(await page.locator('main [data-id]').count(), 0);
});

test('a message that the page has not read is found', async (t) => {
  const relay = await startRelay(t);
  const alice = await newAgent(relay), first = await alice.ask();
  for (let i = 0; i < 300; i++) await alice.ask();
  const page = await openPage(t, relay.url, { hash: '#/verify', allow: isRefusal }); // of /threads/ID
  await connection(page, 'live');
  await search(page, first.id);
  await see(page, message(first, '[data-verified="true"]'));
});

test('a whole envelope is verified, with an explanation', async (t) => {
  const relay = await startRelay(t);
  const alice = await newAgent(relay, 'Alice'), page = await openPage(t, relay.url);
  await connection(page, 'live');
  const payload = { request_id: 'r', intent: 'echo', params: { text: 'never posted' } };
  const e = await alice.signed('REQUEST', payload, { thread: { id: 'x' } });
  await paste(page, JSON.stringify(e, null, 2));
  const shown = await see(page, `main ${message(e, '[data-verified="true"]')}`);
  assert.match(await shown.textContent(), /SHA-256/);
  await goTo(page, '#/verify');
  await page.fill('#verify-text', JSON.stringify({ envelope: e }));
  await page.click('main button:has-text("verify")');
  await see(page, `main ${message(e, '[data-verified="true"]')}`);
  for (const [name, text] of Object.entries({
    'another payload': JSON.stringify({ ...e, payload: { ...e.payload, intent: 'echO' } }),
    'another sender': JSON.stringify({ ...e, sender: { id: (await newAgent(relay)).did } }),
    'a member twice': JSON.stringify(e).replace('"version"', '"id":"first","version"'),
    'no JSON': '{"id":', 'a number': '{"id":1}', 'nested far too deep': '{"a":'.repeat(5000) + '1' + '}'.repeat(5000),
  })) {
    await page.fill('#verify-text', text);
    await page.click('main button:has-text("verify")');
    await until(name, async () => await page.locator('main [data-verified="false"]').count() > 0
      && await page.locator('main [data-verified="true"]').count() === 0);
    await page.fill('#verify-text', JSON.stringify(e));
    await page.click('main button:has-text("verify")');
    await see(page, `main ${message(e, '[data-verified="true"]')}`);
  }
});

test('a proxy that changes one message turns its mark, and no other', async (t) => {
  const relay = await startRelay(t);
  const { done } = await seed(relay);
  const proxy = await startProxy(t, relay, {
    change: (text) => text.replace('"translation":"Bonjour"', '"translation":"Bonsoir"'),
  });
  const page = await openPage(t, proxy.url, { hash: '#/feed' });
  await see(page, '#feed-list [data-type="RESULT"][data-verified="false"]');
  await until('the other marks', async () => await page.locator('#feed-list [data-verified="pending"]').count() === 0);
  const marks = await page.locator('#feed-list [data-id]').evaluateAll((all) =>
    all.map((e) => [e.dataset.type, e.dataset.verified]));
  assert.ok(marks.length > 8);
  for (const [type, verified] of marks) assert.equal(verified, String(type !== 'RESULT'), type);
  await goTo(page, done.hash);
  await see(page, 'main [data-type="RESULT"][data-verified="false"]');
  await see(page, 'main [data-type="OFFER"][data-verified="true"]');
  await page.locator('main [data-type="RESULT"] [data-mark]').first().click();
  await says(page, 'dialog', /signature/i);
});
