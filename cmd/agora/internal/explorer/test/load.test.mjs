// How the page loads: soon, small, and without anybody else.
import assert from 'node:assert/strict';
import test from 'node:test';
import { connection, openPage, until } from './lib/browser.mjs';
import { seed } from './lib/messages.mjs';
import { startRelay } from './lib/relay.mjs';

const LOADS = 5;

const firstPaint = (page) => until('the first paint', () =>
  page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime));

test('the first paint comes within a second, with less than 150 KB', async (t) => {
  const relay = await startRelay(t);
  await seed(relay);
  const paints = [], plain = [];
  for (let load = 0; load < LOADS && !(Math.min(...paints) < 1000); load++) {
    const page = await openPage(t, relay.url);
    await connection(page, 'live');
    paints.push(await firstPaint(page));
    const bytes = await page.evaluate(() => ['navigation', 'resource'].flatMap((type) =>
      performance.getEntriesByType(type).map(({ name, transferSize }) => [name, transferSize])));
    assert.ok(bytes.some(([name]) => name.endsWith('/page/agora.js')), 'the module is not counted');
    const sum = bytes.reduce((all, [, size]) => all + size, 0);
    assert.ok(sum > 10_000 && sum < 150_000, `${sum} bytes: ${JSON.stringify(bytes)}`);
    const text = await page.context().newPage();
    await text.goto(`${relay.url}/page/agora.css`); // shown as plain text
    plain.push(await firstPaint(text));
  }
  // On a machine that is busy with other tests, plain text takes long, too. There the page may take four times as long.
  const limit = Math.max(1000, 4 * Math.min(...plain));
  assert.ok(Math.min(...paints) < limit, `first paints after ${paints.map(Math.round)} ms, of plain text after ${
    plain.map(Math.round)} ms`);
});

test('a second visit transfers no file again', async (t) => {
  const relay = await startRelay(t);
  const page = await openPage(t, relay.url);
  await connection(page, 'live');
  const answers = [];
  page.on('response', (r) => { if (/\/page\/(?!config)/.test(r.url())) answers.push(r); });
  await page.reload();
  await connection(page, 'live');
  assert.ok(answers.length > 5, `only ${answers.length} files`);
  for (const r of answers) assert.equal((await r.request().sizes()).responseBodySize, 0, r.url());
});

test('the policy is in force', async (t) => {
  const relay = await startRelay(t), problems = [];
  const page = await openPage(t, relay.url, { allow: (what) => problems.push(what) });
  await connection(page, 'live');
  // Each of these must be stopped by the browser. The test notices if a header is missing or is not understood.
  const results = await page.evaluate(async () => {
    const tried = {};
    const attempt = async (name, act) => {
      try {
        await act();
        tried[name] = 'allowed';
      } catch (err) { tried[name] = err.name; }
    };
    await attempt('markup', () => { document.createElement('div').innerHTML = '<b>x</b>'; });
    await attempt('policy', () => globalThis.trustedTypes.createPolicy('default', {}));
    await attempt('other origin', () => fetch('http://127.0.0.1:9/'));
    const script = document.createElement('script');
    await attempt('script text', () => { script.textContent = 'globalThis.injected = 1'; });
    const style = document.createElement('div');
    style.setAttribute('style', 'width: 77px');
    document.body.append(style);
    tried.style = style.style.width || 'stopped';
    style.remove();
    tried.script = globalThis.injected ? 'ran' : 'stopped';
    return tried;
  });
  assert.deepEqual(results, { markup: 'TypeError', policy: 'TypeError', 'other origin': 'TypeError',
    'script text': 'TypeError', style: 'stopped', script: 'stopped' });
  const violations = () => problems.filter((p) => p.startsWith('CSP: '));
  await until('five reports', () => violations().length === 5);
  assert.deepEqual(problems.filter((p) => !p.startsWith('CSP: ') && !/violates|Policy|trusted/i.test(p)), []);
});
