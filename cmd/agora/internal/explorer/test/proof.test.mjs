// Proofs of messages, and the warning about a log that has lost something.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cp, readFile, rm } from 'node:fs/promises';
import test from 'node:test';
import { promisify } from 'node:util';
import { verifyProof } from '../../../../../sdk/js/proof.js';
import { connection, goTo, isRefusal, message, openPage, says, see, settled, until } from './lib/browser.mjs';
import { findHarm } from './lib/inert.mjs';
import { conversation, newAgent, seed } from './lib/messages.mjs';
import { AGORA, restart, startPage, startProxy, startRelay } from './lib/relay.mjs';

const LOG = { flags: ['--transparency', 'on'] };
const WARNING = '#log-warning:visible';

/** The panel of a message on the page of its thread. */
const panel = (e) => `main ${message(e)} .proof`;

/** Opens the panel of a message, and waits until its verdict is that. */
async function open(page, e, verdict) {
  await page.locator(`${panel(e)} > summary`).click();
  return see(page, `${panel(e)} .verdict[data-verified="${verdict}"]`);
}

/** Changes the answers to the path as they arrive. */
const changing = (path, change) => ({ change: (text, { url }) => url.startsWith(path) ? change(text, url) : text });

test('a proof is verified, shown and downloaded', async (t) => {
  const relay = await startRelay(t, LOG), { alice, bob, done } = await seed(relay);
  const e = await conversation(alice, bob, { id: 'last' }).request();
  const page = await openPage(t, relay.url, { hash: `#/thread/last?client=${alice.did}` });
  await open(page, e, 'true');
  const text = await page.locator(panel(e)).textContent();
  const { did } = await (await fetch(`${relay.url}/.well-known/agora.json`)).json();
  const saving = page.waitForEvent('download');
  await page.click(`${panel(e)} button:has-text("Download")`);
  const saved = await saving, file = await readFile(await saved.path(), 'utf8');
  assert.equal(saved.suggestedFilename(), `${e.id}.proof`);
  const proof = await verifyProof(file, { message: e, relay: did });
  assert.match(text, /cannot take this message back/);
  assert.match(text, new RegExp(`Index${proof.index}Size of the log${proof.size} leaves`));
  assert.match(text, /WitnessesNone/);
  const time = page.locator(`${panel(e)} time`);
  assert.equal(await time.getAttribute('datetime'), proof.leaf.received);

  // The picture has every hash of the proof: the root on top, the leaf at the bottom.
  const boxes = await page.locator(`${panel(e)} .tree g`).evaluateAll((all) => all.map((box) => ({
    kind: box.getAttribute('class'), text: box.textContent, top: box.getBoundingClientRect().top,
    left: box.getBoundingClientRect().left })));
  const short = (hash) => `${hash.slice(0, 8)}…`, nodes = boxes.filter(({ kind }) => kind !== 'tree-beside');
  const lines = file.split('\n'), path = lines.slice(3, lines.indexOf(''));
  const root = lines[lines.indexOf('') + 3], beside = boxes.filter(({ kind }) => kind === 'tree-beside');
  assert.deepEqual(beside.map(({ text }) => text), path.map(short));
  assert.deepEqual([nodes[0].text, nodes.at(-1).text], [short(proof.hash), short(root)]);
  assert.ok(nodes.length > 2 && nodes.every(({ top }, i) => i === 0 || top < nodes[i - 1].top), 'the path goes up');
  let hash = proof.hash;
  for (const [i, { left, top }] of beside.entries()) {
    const isLeft = left < nodes[i].left, pair = isLeft ? [path[i], hash] : [hash, path[i]];
    const bytes = Buffer.concat([Buffer.of(1), ...pair.map((one) => Buffer.from(one, 'base64'))]);
    hash = createHash('sha256').update(bytes).digest('base64');
    assert.ok(top === nodes[i].top && nodes[i + 1].text === short(hash), `the hashes at step ${i + 1}`);
  }
  assert.equal(hash, root);
  const label = await page.locator(`${panel(e)} .tree`).getAttribute('aria-label');
  for (const hash of path) assert.ok(label.includes(short(hash)), label);
  assert.equal(await page.locator(WARNING).count(), 0);

  // The inspector has the panel too.
  await page.goto(`${relay.url}/${done.hash}`);
  await page.locator('main [data-type="RESULT"] [data-mark="true"]').first().click();
  await page.locator('dialog .proof > summary').click();
  await see(page, 'dialog .proof .verdict[data-verified="true"]');
});

test('a proof that is not valid is shown as a warning', async (t) => {
  const relay = await startRelay(t, LOG), { alice, done } = await seed(relay);
  const other = await alice.ask();
  const proofOfOther = await (await fetch(
    `${relay.url}/proofs?sender=${encodeURIComponent(alice.did)}&id=${other.id}`)).text();
  const attacks = {
    'another message': () => proofOfOther,
    'path does not lead': (text) => text.replace(/^[^ ]{43}=$/m, `${'A'.repeat(43)}=`),
    'signature of the relay is wrong': (text) => text.replace(/.{8}\n$/, 'AAAAAAA=\n'),
    'names its format': () => '<img src=x onerror=alert(1)>',
    'too long': () => 'x'.repeat(70_000),
  };
  let attack;
  const proxy = await startProxy(t, relay, changing('/proofs', (text) => attack(text)));
  const page = await openPage(t, proxy.url, { hash: done.hash });
  const summary = `main [data-type="ACCEPT"][data-verified="true"] .proof > summary`;
  for (const [words, change] of Object.entries(attacks)) {
    attack = change;
    await page.click(summary);
    await says(page, 'main [data-type="ACCEPT"] .proof .verdict', new RegExp(words));
    assert.equal(await page.locator('main .proof .verdict[data-verified="true"]').count(), 0, words);
    assert.equal(await page.locator('main .proof .tree').count(), 0, words);
    await page.click(summary);
    await page.waitForFunction(() => !document.querySelector('main .proof[open]'));
  }
  assert.deepEqual(await findHarm(page), []);
});

test('signatures by others are shown, but not as checked', async (t) => {
  const relay = await startRelay(t, LOG), { done } = await seed(relay);
  const raw = Buffer.alloc(76);
  raw.writeBigUInt64BE(1_770_033_605n, 4);
  const lines = [`— <b>\u05e9\u05dc\u05d5\u05dd/witness ${raw.toString('base64')}\n`, '— short AAAAAAAA\n'];
  const huge = `— late ${Buffer.alloc(76, 0xff).toString('base64')}\n`;
  const proxy = await startProxy(t, relay, changing('/proofs', (text) => text + lines.join('') + huge));
  const page = await openPage(t, proxy.url, { hash: done.hash });
  await page.click('main [data-type="ACCEPT"] .proof > summary');
  const shown = await see(page, 'main .proof ul'), all = shown.locator('li');
  assert.equal(await all.count(), 3);
  assert.match(await all.nth(0).textContent(), /^<b>.*\/witness at 2 Feb 2026, 13:00:05$/);
  assert.equal(await all.nth(1).textContent(), 'short');
  assert.match(await page.locator('main .proof').allTextContents().then(String), /Not checked/);
  assert.deepEqual(await findHarm(page), []);
});

test('without a proof, the panel says why', async (t) => {
  const relay = await startRelay(t, { flags: ['--transparency', 'off'] });
  const alice = await newAgent(relay, 'Alice'), bob = await newAgent(relay, 'Bob');
  const talk = conversation(alice, bob), e = await talk.request();
  const before = await openPage(t, relay.url, { hash: talk.hash });
  await connection(before, 'live');
  await settled(before);
  assert.equal(await before.locator('.proof:visible').count(), 0, 'the relay keeps no log');
  await before.context().close();
  await relay.stop();

  const later = await restart(t, { ...relay, ...LOG }), removed = await talk.offer();
  const page = await openPage(t, later.url, { hash: talk.hash, allow: isRefusal });
  assert.match(await (await open(page, e, 'unknown')).textContent(), /No proof.*older than the log/);

  // The feed still has a message that was removed after the page has read it.
  await goTo(page, '#/feed');
  await see(page, `#feed-list ${message(removed, '[data-verified="true"]')}`);
  const flags = ['--data', later.data, '--event', removed.id, '--sender', bob.did];
  await promisify(execFile)(AGORA, ['admin', 'remove', ...flags]);
  await page.click(`#feed-list ${message(removed)} [data-mark]`);
  await page.click('dialog .proof > summary');
  await says(page, 'dialog .proof .verdict[data-verified="unknown"]', /No proof.*removed/);
});

test('a proof that is not for this reader is refused with the reason', async (t) => {
  const relay = await startRelay(t, LOG), { done } = await seed(relay);
  const none = { status: 404, body: { ok: false, error: 'NOT_FOUND', message: 'none', retryable: false } };
  const proxy = await startProxy(t, relay, {
    answer: ({ url }) => url.startsWith('/proofs') ? none : undefined,
    ...changing('/.well-known', (text) => text.replace('"reads":"open"', '"reads":"parties"')),
  });
  const page = await openPage(t, proxy.url, { hash: done.hash, allow: isRefusal });
  await page.click('main [data-type="ACCEPT"] .proof > summary');
  await says(page, 'main .proof .verdict', /No proof.*only to its sender and its recipient/);
});

test('agora page shows proofs, and checks the log', async (t) => {
  const relay = await startRelay(t, LOG), { done } = await seed(relay), url = await startPage(t, relay.url);
  const page = await openPage(t, url, { hash: done.hash });
  await page.click('main [data-type="ACCEPT"] .proof > summary');
  await see(page, 'main .proof .verdict[data-verified="true"]');
  await until('the log is remembered', async () => (await remembered(page)) !== null);
});

/** What the page has kept of the log, as text. */
const remembered = (page) => page.evaluate(() => {
  const name = Object.keys(localStorage).find((key) => key.startsWith('agora-log did:key:'));
  return name ? localStorage.getItem(name) : null;
});

/** Visits the page, and waits until it has compared the log. Without a warning, it has remembered the log then. */
async function visit(page) {
  const from = Date.now();
  await page.reload();
  await connection(page, 'live');
  await until('the log is compared', async () =>
    await page.locator(WARNING).count() > 0 || JSON.parse(await remembered(page))?.at >= from);
  return await page.locator(WARNING).count() > 0 ? page.locator(WARNING).textContent() : '';
}

/** Changes what the page remembers of the log. */
const pretend = (page, change) => page.evaluate((change) => {
  const name = Object.keys(localStorage).find((key) => key.startsWith('agora-log did:key:'));
  localStorage.setItem(name, JSON.stringify({ ...JSON.parse(localStorage.getItem(name)), ...change }));
}, change);

test('a log that has become smaller is warned of until the reader has seen it', async (t) => {
  const relay = await startRelay(t, LOG), alice = await newAgent(relay, 'Alice');
  await alice.ask();
  await relay.stop();
  const copy = `${relay.data}-copy`;
  await cp(relay.data, copy, { recursive: true });
  let now = await restart(t, relay);
  const page = await openPage(t, relay.url, { allow: isRefusal });
  await alice.ask();
  await alice.ask();
  await until('the larger log', async () => await visit(page) === '' && JSON.parse(await remembered(page)).size === 4);
  assert.equal(await visit(page), '', 'nothing has changed');

  await now.stop();
  await rm(relay.data, { recursive: true });
  await cp(copy, relay.data, { recursive: true });
  now = await restart(t, relay);
  const words = /become smaller.*had 4 leaves, now it has 2/;
  assert.match(await visit(page), words);
  assert.match(await visit(page), words, 'the warning stays');
  await page.click(`${WARNING} button`);
  assert.equal(await visit(page), '', 'the reader has seen it');
  await now.stop();
  await rm(copy, { recursive: true });
});

test('new logs, other logs and missing logs', async (t) => {
  const relay = await startRelay(t, LOG), alice = await newAgent(relay, 'Alice');
  await alice.ask();
  let change = (text) => text;
  const proxy = await startProxy(t, relay, { change: (text, request) => change(text, request) });
  const page = await openPage(t, proxy.url, { allow: isRefusal });
  await until('the whole log', async () => await visit(page) === '' && JSON.parse(await remembered(page)).size === 2);
  const { epoch, size, root } = JSON.parse(await remembered(page));

  // The root of another log of the same size.
  await pretend(page, { root: 'A'.repeat(43) + '=' });
  assert.match(await visit(page), /been changed/);
  await pretend(page, { root });

  // Logs that name the log before, or do not.
  const { did } = await (await fetch(`${relay.url}/.well-known/agora.json`)).json();
  const hash = 'A'.repeat(43) + '=';
  const starts = [['-', /does not continue/], [`${did}/0000000a 3 ${hash}`, /only its first 3 leaves/],
    [`${did}/0000000b 9 ${hash}`, /does not continue/], [`${did}/0000000a 5 ${hash}`, undefined]];
  for (const [previous, words] of starts) {
    await pretend(page, { epoch: '0000000a', size: 5 });
    change = (text) => text.replace('previous -', `previous ${previous}`);
    const warning = await visit(page);
    if (words) assert.match(warning, words);
    else assert.equal(warning, '');
  }
  assert.equal(JSON.parse(await remembered(page)).epoch, epoch);

  // A checkpoint that the relay has not signed, a log with a wrong name, and no log at all.
  change = (text, { url }) => url.endsWith('/checkpoint') ? text.replace(`\n${size}\n`, '\n9\n') : text;
  assert.match(await visit(page), /does not show its log.*signature of the relay is wrong/);
  change = (text) => text.replace(/"origin":"[^"]*"/, '"origin":"../../x"');
  assert.match(await visit(page), /does not show its log/);
  change = (text) => text.replace(/("features":\[[^\]]*),"proofs"/, '$1');
  assert.match(await visit(page), /keeps no log any more/);
  change = (text) => text;
  assert.equal(await visit(page), '');
});
