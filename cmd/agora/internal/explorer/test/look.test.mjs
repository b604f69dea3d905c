// The page at phone and desktop size, dark and light: it fits, and axe-core finds no fault. SCREENSHOTS=1 also makes
// the pictures of the docs.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import test from 'node:test';
import { connection, goTo, isRefusal, message, openPage, says, see, settled } from './lib/browser.mjs';
import { widest } from './lib/layout.mjs';
import { conversation, newAgent, seed } from './lib/messages.mjs';
import { startRelay } from './lib/relay.mjs';

const AXE = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
const PICTURES = path.resolve(import.meta.dirname, '../../../../../docs/images');
const ALL = [[375, 'light'], [375, 'dark'], [1440, 'light'], [1440, 'dark']], TWO = [ALL[1], ALL[2]];

// All rules look at the phone in the dark and at the desktop in the light. Only colours differ in the other two.
const EVERY = { type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] };
const COLOURS = { type: 'rule', values: ['color-contrast', 'link-in-text-block'] };

/** Runs axe-core, and returns its findings as text. */
const audit = (page, runOnly) => page.evaluate(async (runOnly) => {
  const { violations } = await globalThis.axe.run(document, { resultTypes: ['violations'], runOnly });
  const text = ({ html, any }) => `${html.slice(0, 160)} ${any[0]?.message ?? ''}`;
  return violations.flatMap(({ id, help, nodes }) => nodes.map((node) => `${id} (${help}): ${text(node)}`));
}, runOnly);

/** Looks at the view in these sizes and colours. */
async function look(page, faults, where, looks = TWO) {
  for (const at of looks) {
    const [width, colorScheme] = at;
    await page.setViewportSize({ width, height: 900 });
    await page.emulateMedia({ colorScheme });
    await settled(page);
    const found = [...await widest(page), ...await audit(page, TWO.includes(at) ? EVERY : COLOURS)];
    for (const fault of found) faults.push(`${where}, ${width} px, ${colorScheme}: ${fault}`);
  }
}

const axe = { init: [{ path: AXE }] };

test('every route fits and has no violation', { timeout: 180_000 }, async (t) => {
  const relay = await startRelay(t), { bob, done, active, failed } = await seed(relay), faults = [];
  const page = await openPage(t, relay.url, axe);
  await connection(page, 'live');
  const routes = { overview: '#/', feed: '#/feed', thread: done.hash, agents: '#/agents', agent: `#/agent/${bob.did}`,
    verify: '#/verify', api: '#/api/getEvents' };
  for (const [name, hash] of Object.entries(routes)) {
    await goTo(page, hash);
    await look(page, faults, name, ALL);
  }
  for (const [name, hash] of Object.entries({ active: active.hash, failed: failed.hash, nowhere: '#/nowhere' })) {
    await goTo(page, hash);
    await look(page, faults, name);
  }
  await goTo(page, done.hash);
  await page.locator('main [data-type="RESULT"][data-verified="true"] [data-mark]').first().click();
  await see(page, 'dialog [data-ok="true"]');
  await look(page, faults, 'inspector');
  await page.keyboard.press('Escape');
  await page.click('#key-button');
  await look(page, faults, 'key');
  await page.keyboard.press('Escape');
  const envelope = await bob.signed('REQUEST', { request_id: 'r', intent: 'echo' }, { thread: { id: 'x' } });
  await goTo(page, '#/verify');
  for (const [name, e] of Object.entries({ verified: envelope, failed: { ...envelope, id: 'changed' } })) {
    await page.fill('#verify-text', JSON.stringify(e));
    await page.click('main button:has-text("verify")');
    await see(page, `main ${message(e)}`);
    await look(page, faults, name);
  }
  assert.deepEqual(faults, []);
});

test('demo data fills the views, and the empty ones say how to begin', async (t) => {
  const relay = await startRelay(t), page = await openPage(t, relay.url, { hash: '#/agents' });
  await see(page, 'main code:has-text("agora work")');
  await goTo(page, '#/');
  await (await see(page, '#seed')).click();
  await says(page, '.tile:has-text("Agents online")', /3/);
  await goTo(page, '#/agents');
  await says(page, '.agent-list', /Demo captioner[^]*Demo summarizer|Demo summarizer[^]*Demo captioner/);
  await says(page, 'main h1 + *, main .quiet', /3 manifests/);
});

test('an empty relay, and a private one without a key, fit and have no violation', { timeout: 120_000 }, async (t) => {
  const faults = [];
  for (const [name, flags] of Object.entries({ empty: [], private: ['--reads', 'parties'] })) {
    const relay = await startRelay(t, { flags }), page = await openPage(t, relay.url, { ...axe, allow: isRefusal });
    await connection(page, 'live');
    for (const hash of ['#/', '#/feed', '#/agents', '#/thread/none']) {
      await goTo(page, hash);
      await look(page, faults, `${name} ${hash}`, hash === '#/' ? ALL : TWO);
    }
  }
  assert.deepEqual(faults, []);
});

test('a proof, and the warning about a smaller log, fit and have no violation', { timeout: 120_000 }, async (t) => {
  const relay = await startRelay(t, { flags: ['--transparency', 'on'] }), { done } = await seed(relay), faults = [];
  const page = await openPage(t, relay.url, { ...axe, hash: done.hash });
  const accept = 'main [data-type="ACCEPT"][data-verified="true"]';
  await page.click(`${accept} .proof > summary`);
  await see(page, `${accept} .tree`);
  await look(page, faults, 'proof', ALL);
  await page.click(`${accept} [data-mark]`);
  await page.click('dialog .proof > summary');
  await see(page, 'dialog .tree');
  await look(page, faults, 'proof in the inspector');
  await page.evaluate(() => {
    const name = Object.keys(localStorage).find((key) => key.startsWith('agora-log '));
    localStorage.setItem(name, localStorage.getItem(name).replace(/"size":\d+/, '"size":1000'));
  });
  await page.reload();
  await see(page, '#log-warning');
  await look(page, faults, 'warning', ALL);
  await goTo(page, '#/feed');
  await look(page, faults, 'warning above the feed', ALL);
  assert.deepEqual(faults, []);
});

test('nothing scrolls sideways at 200 % and at odd widths', async (t) => {
  const relay = await startRelay(t), { bob, done } = await seed(relay), faults = [];
  // A window of 1280 px at 200 % has 640 CSS pixels, with two device pixels each; one at 400 % has 320.
  const page = await openPage(t, relay.url, { viewport: { width: 640, height: 400 }, deviceScaleFactor: 2 });
  await connection(page, 'live');
  for (const hash of ['#/', '#/feed', done.hash, '#/agents', `#/agent/${bob.did}`, '#/verify']) {
    await goTo(page, hash);
    for (const width of [640, 320, 720, 768, 1024]) {
      await page.setViewportSize({ width, height: 400 });
      await settled(page);
      for (const fault of await widest(page)) faults.push(`${hash}, ${width} px: ${fault}`);
    }
  }
  assert.deepEqual(faults, []);
});

test('nothing moves while the page loads', async (t) => {
  const relay = await startRelay(t), { bob, done } = await seed(relay);
  const routes = { overview: '#/', feed: '#/feed', thread: done.hash, agent: `#/agent/${bob.did}` };
  for (const [name, hash] of Object.entries(routes)) {
    const page = await openPage(t, relay.url, { hash, init: [() => {
      globalThis.shifts = [];
      const note = (list) => {
        for (const { hadRecentInput, value } of list.getEntries()) if (!hadRecentInput) globalThis.shifts.push(value);
      };
      new PerformanceObserver(note).observe({ type: 'layout-shift', buffered: true });
    }] });
    await connection(page, 'live');
    await settled(page);
    await page.waitForTimeout(300);
    const sum = (await page.evaluate(() => globalThis.shifts)).reduce((all, one) => all + one, 0);
    t.diagnostic(`${name}: layout shift ${sum.toFixed(3)}`);
    assert.ok(sum < 0.1, `${name}: layout shift ${sum}`);
    await page.context().close();
  }
});

test('times are local, with UTC beside them', async (t) => {
  const relay = await startRelay(t), alice = await newAgent(relay, 'Alice');
  const e = await alice.ask();
  for (const timezoneId of ['Asia/Tokyo', 'America/Lima']) {
    const page = await openPage(t, relay.url, { hash: '#/feed', timezoneId });
    const shown = (await see(page, message(e))).locator('time').first();
    const format = new Intl.DateTimeFormat('en-GB', { timeZone: timezoneId, timeStyle: 'medium' });
    const local = format.format(new Date(e.ts));
    assert.ok((await shown.textContent()).includes(local), `${await shown.textContent()} has no ${local}`);
    assert.ok((await shown.getAttribute('title')).includes(`${e.ts.slice(11, 19)}`));
    await page.context().close();
  }
});

if (process.env.SCREENSHOTS === '1') {
  test('pictures for the docs', async (t) => {
    const relay = await startRelay(t), { alice, bob, carol, done } = await seed(relay);
    const intents = ['translation.en_fr', 'summary.text', 'image.caption'];
    for (let i = 0; i < 12; i++) {
      const talk = conversation([alice, carol][i % 2], bob, { intent: intents[i % 3] });
      const last = i % 4 === 3 ? 'error' : 'result';
      for (const step of ['request', 'offer', 'accept', last].slice(0, i % 5 === 4 ? 2 : 4)) await talk[step]();
    }
    await mkdir(PICTURES, { recursive: true });
    const page = await openPage(t, relay.url);
    await connection(page, 'live');
    const pictures = { overview: ['#/', 1440, 900, 'light'], feed: ['#/feed', 1440, 900, 'light'],
      thread: [done.hash, 1440, 1000, 'light'], 'feed-phone': ['#/feed', 375, 760, 'dark'] };
    for (const [name, [hash, width, height, colorScheme]] of Object.entries(pictures)) {
      await page.setViewportSize({ width, height });
      await page.emulateMedia({ colorScheme });
      await goTo(page, hash);
      await settled(page);
      await page.waitForTimeout(500);
      const picture = await page.screenshot({ path: path.join(PICTURES, `page-${name}.png`) });
      assert.ok(picture.length < 200_000, `page-${name}.png has ${picture.length} bytes`);
    }
  });
}
