// The pages of a thread and of the directory: they change while the reader watches, and their links work.
import assert from 'node:assert/strict';
import test from 'node:test';
import { goTo, message, openPage, see, until } from './lib/browser.mjs';
import { announce, conversation, newAgent, seed } from './lib/messages.mjs';
import { startRelay } from './lib/relay.mjs';

const state = async (page, text) => {
  await see(page, `[data-state="${text}"][data-thread]`);
  await until(`the state ${text}`, async () => (await page.locator('#thread-state').textContent()).includes(text));
};

test('a thread moves live through its states', async (t) => {
  const relay = await startRelay(t);
  const alice = await newAgent(relay, 'Alice'), bob = await newAgent(relay, 'Bob'), talk = conversation(alice, bob);
  const request = await talk.request();
  const page = await openPage(t, relay.url, { hash: talk.hash });
  const feed = await openPage(t, relay.url, { hash: '#/feed' });
  await state(page, 'PENDING');
  await see(page, message(request, '[data-type="REQUEST"][data-verified="true"]'));
  await see(feed, message(request, '[data-verified="true"]'));
  for (const [step, text] of [['offer', 'PENDING'], ['accept', 'ACTIVE'], ['result', 'COMPLETED']]) {
    const e = await talk[step]();
    await see(page, message(e, `[data-type="${step.toUpperCase()}"][data-verified="true"]`));
    await see(feed, `#feed-list ${message(e, `[data-type="${step.toUpperCase()}"][data-verified="true"]`)}`);
    await state(page, text);
  }
  assert.equal(await page.locator(`[data-thread="${talk.id}"]`).count(), 1);
});

test('a thread that fails is shown as ERROR', async (t) => {
  const relay = await startRelay(t);
  const alice = await newAgent(relay, 'Alice'), bob = await newAgent(relay, 'Bob'), talk = conversation(alice, bob);
  for (const step of ['request', 'offer', 'accept']) await talk[step]();
  const page = await openPage(t, relay.url, { hash: talk.hash });
  await state(page, 'ACTIVE');
  const e = await talk.error({ message: 'The dictionary is lost' });
  await state(page, 'ERROR');
  assert.match(await (await see(page, message(e))).textContent(), /The dictionary is lost/);
});

test('a thread that times out is shown as ERROR without a new message of a party', async (t) => {
  const relay = await startRelay(t, { flags: ['--pending-timeout', '2s'] });
  const alice = await newAgent(relay, 'Alice'), bob = await newAgent(relay, 'Bob'), talk = conversation(alice, bob);
  await talk.request();
  const page = await openPage(t, relay.url, { hash: talk.hash });
  await state(page, 'ERROR');
});

test('two threads with one id are told apart by their client', async (t) => {
  const relay = await startRelay(t);
  const [alice, bob, eve] = await Promise.all(['Alice', 'Bob', 'Eve'].map((name) => newAgent(relay, name)));
  const first = conversation(alice, bob, { id: 'same' }), second = conversation(eve, bob, { id: 'same' });
  const one = await first.request(), other = await second.request();
  await first.offer();
  await first.accept();
  const page = await openPage(t, relay.url, { hash: first.hash });
  await state(page, 'ACTIVE');
  assert.equal(await page.locator(`main ${message(other)}`).count(), 0);
  await goTo(page, second.hash);
  await state(page, 'PENDING');
  await see(page, message(other));
  assert.equal(await page.locator(`main ${message(one)}`).count(), 0);
});

test('links lead from the feed to a thread, to an agent and back', async (t) => {
  const relay = await startRelay(t);
  const { alice, bob, done } = await seed(relay);
  const page = await openPage(t, relay.url, { hash: '#/feed' });
  const row = await see(page, '#feed-list [data-type="RESULT"]');
  await row.locator('time').first().click();
  await page.waitForURL((url) => url.hash.startsWith(`#/thread/${done.id}?client=`));
  await state(page, 'COMPLETED');
  await page.locator(`main a[href*="#/agent/"]:has-text("Bob")`).first().click();
  await page.waitForURL((url) => decodeURIComponent(url.hash) === `#/agent/${bob.did}`);
  await see(page, 'main [data-type="MANIFEST"][data-verified="true"]');
  assert.match(await page.locator('main').textContent(), new RegExp(`agora ask [^]*--to ${bob.did}`));
  await page.goBack();
  await state(page, 'COMPLETED');
  await page.locator('nav a[href="#/agents"]').click();
  await see(page, `main [data-type="MANIFEST"] >> text=Bob`);
  await page.locator('nav a[href="#/"]').click();
  await see(page, `[data-thread="${done.id}"][data-state="COMPLETED"]`);
  await page.locator(`[data-thread="${done.id}"] a`).first().click();
  await page.waitForURL((url) => decodeURIComponent(url.hash).endsWith(alice.did));
});

test('an agent is asked through each protocol that its manifest names', async (t) => {
  const relay = await startRelay(t), bob = await newAgent(relay, 'Bob');
  await announce(bob, ['text.upper'], {
    addresses: [
      { protocol: 'hub', address: 'bob@relay.example' }, { protocol: 'jobs', address: "it's" }, { protocol: 'a2a', address: '--help' },
      { protocol: 'mail', address: 'bob' }, { protocol: 'hub' }, null, 7,
    ],
  });
  const page = await openPage(t, relay.url, { hash: `#/agent/${encodeURIComponent(bob.did)}` });
  await see(page, 'main [data-type="MANIFEST"][data-verified="true"]');
  assert.deepEqual(
    (await page.locator('main .command code').allTextContents()).map((line) => line.split(' --key')[0].replace(/ --relay \S+/, '')),
    [
      'agora ask text.upper', "agora hub send bob@relay.example 'Hello'",
      "agora jobs hire 'it'\\''s' text.upper --budget CREDITS",
    ],
  );
});

test('the directory filters by intent, by text and by who is online', async (t) => {
  const relay = await startRelay(t);
  const { bob, carol } = await seed(relay);
  const page = await openPage(t, relay.url, { hash: `#/agents?intent=image.caption` });
  await see(page, 'main [data-type="MANIFEST"] >> text=Carol');
  assert.equal(await page.locator('main [data-type="MANIFEST"]').count(), 1);
  await goTo(page, '#/agents?q=translates');
  await see(page, 'main [data-type="MANIFEST"] >> text=Bob');
  await until('one agent', async () => await page.locator('main [data-type="MANIFEST"]').count() === 1);
  await goTo(page, '#/agents?online=true');
  await until('both agents', async () => await page.locator('main [data-type="MANIFEST"]').count() === 2);
  await announce(bob, ['echo'], { id: 'second', name: 'Bob repeats' });
  await goTo(page, `#/agent/${bob.did}`);
  const manifests = page.locator('main article[data-type="MANIFEST"]:not(.message)');
  await until('both manifests', async () => await manifests.count() === 2);
  await goTo(page, `#/agent/${carol.did}`);
  await see(page, 'main >> text=One line for each picture.');
});

test('an empty relay invites, and can be seeded from its own machine', async (t) => {
  const relay = await startRelay(t);
  const page = await openPage(t, relay.url);
  await (await see(page, '#seed')).click();
  const finished = page.locator('[data-thread][data-state="COMPLETED"]');
  await until('the seeded threads', async () => await finished.count() === 3);
  assert.equal(await page.locator('#seed:visible').count(), 0);
});
