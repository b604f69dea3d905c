// Messages, manifests and answers that try to harm the reader.
import assert from 'node:assert/strict';
import test from 'node:test';
import { canonicalize, parse, sign } from '../../../../../sdk/js/agora.js';
import { connection, goTo, isRefusal, openPage, see, settled, until } from './lib/browser.mjs';
import { findHarm } from './lib/inert.mjs';
import { conversation, fresh, newAgent, post } from './lib/messages.mjs';
import { startProxy, startRelay } from './lib/relay.mjs';

const TEXTS = {
  markup: '<img src=x onerror="alert(1)"><script>alert(2)</script><style>*{display:none}</style>' +
    '<iframe srcdoc="<p>x">' +
    `"'><svg onload=alert(3)><a href="javascript:alert(4)">x</a><base href=//evil.example>{{7*7}}\${alert(7)}<%= 8 %>`,
  address: 'javascript:alert(5)//data:text/html,<script>alert(6)</script>',
  characters: `safe\u202egnp.exe\u202c \u2066\u2067\u2069\u200f\u061c end a\u200b\u2060\ufeff\u00adb\u{e0041}` +
    `\u0000\u0007\u001b[31m\u009b2J\u007f\r\n\t\u2028\u2029 Z${'\u0335\u0489\u030d'.repeat(300)} ` +
    '👨‍👩‍👧‍👦'.repeat(50),
  hebrew: 'שלום! (1) 2:3', long: 'W'.repeat(100_000), words: 'many words '.repeat(8000),
};
const cut = (text, max) => text.slice(0, max).replace(/[\ud800-\udbff]$/, '');
// Ids that the protocol allows, and that are names of JavaScript's own members.
const IDS = ['constructor', 'toString', 'hasOwnProperty', `a${'~:._-'.repeat(25)}`, '9'.repeat(128)];
const deep = (n) => JSON.parse('['.repeat(n) + ']'.repeat(n));

/** Payloads whose members have other types than a reader expects. */
const WRONG = [
  { price: 'free', eta_seconds: 'soon', plan: { a: 1 }, valid_until: 'never' },
  { price: { amount: 1e308, currency: {} }, eta_seconds: 1e300 },
  { price: { amount: -1, currency: 'x'.repeat(5000) }, eta_seconds: -5, valid_until: 5 },
  { price: null, plan: [[]], eta_seconds: null },
  { price: { amount: '<b>' }, plan: 7, valid_until: '9999-99-99T99:99:99Z' },
];

/** Notes what is wrong on the page. */
async function look(page, harm, where) {
  for (const what of await findHarm(page)) harm.push(`${where}: ${what}`);
}

/** Opens all details, and then one inspector, and looks at both. */
async function openEverything(page, harm, where) {
  await page.evaluate(() => document.querySelectorAll('main details').forEach((d) => { d.open = true; }));
  await look(page, harm, where);
  const mark = page.locator('main [data-id] [data-mark]').first();
  if (await mark.count() === 0) return;
  await mark.click();
  await page.locator('dialog').waitFor();
  await look(page, harm, `${where}, inspector`);
  await page.keyboard.press('Escape');
  await page.locator('dialog').waitFor({ state: 'detached' });
}

/** Signs and posts a message whose payload is given as JSON, because JavaScript cannot write each payload. */
async function sendText(relay, a, type, payload, fields = {}) {
  const draft = { version: '1.0', id: fresh('msg'), ts: new Date().toISOString(), type, meta: { ttl: 86_400 },
    sender: { id: a.did }, ...fields, payload: 'PAYLOAD' };
  const e = parse(new TextEncoder().encode(JSON.stringify(draft).replace('"PAYLOAD"', payload)));
  const { status, answer } = await post(relay, canonicalize(await sign(e, a.me)));
  assert.equal(status, 200, JSON.stringify(answer));
}

async function fill(relay) {
  const hashes = ['#/', '#/feed', '#/agents'];
  for (const [i, text] of Object.values(TEXTS).entries()) {
    const mallory = await newAgent(relay, cut(text, 2000)), bob = await newAgent(relay, cut(text, 50));
    const talk = conversation(mallory, bob, { intent: cut(text, 20_000), title: cut(text, 20_000) });
    await talk.request({ params: { [cut(text, 30_000)]: cut(text, 30_000) } });
    await talk.offer({ plan: text, price: { amount: 1, currency: cut(text, 100) } });
    await talk.accept();
    if (i % 2) await talk.result({ status: cut(text, 100), output: text });
    else await talk.error({ code: cut(text, 100), message: text });
    const name = cut(text, 9000);
    await mallory.send('MANIFEST', { id: 'm', name, description: name, version: name, supported_languages: [name],
      privacy_policy: name, pricing: { model: 'fixed', fixed_price: 1, currency: cut(text, 500) },
      intents: [{ id: name, name, input_schema: { properties: { [name]: { default: name } } } }],
    }, { sender: { id: mallory.did, name, url: name } });
    hashes.push(talk.hash, `#/agent/${mallory.did}`);
  }
  return hashes;
}

async function fillWrong(relay) {
  const hashes = [], alice = await newAgent(relay), bob = await newAgent(relay);
  for (const payload of WRONG) {
    const talk = conversation(alice, bob, { id: fresh('wrong') });
    await talk.request({ title: 5, params: deep(50), constraints: { max_cost_usd: 'x', deadline: {} } });
    await talk.offer(payload);
    await talk.accept();
    await talk.result({ output: deep(50), status: 'x' });
    hashes.push(talk.hash);
  }
  for (const id of IDS) {
    const talk = conversation(alice, bob, { id });
    await talk.request();
    hashes.push(talk.hash);
    await alice.send('REQUEST', { request_id: id, intent: id }, { id, thread: { id: `${id.slice(0, 100)}.x` } });
  }
  const proto = '{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}},' +
    '"request_id":"r","intent":"i","params":{"__proto__":{"polluted":1}}}';
  await sendText(relay, alice, 'REQUEST', proto, { thread: { id: 'polluted' } });
  hashes.push(`#/thread/polluted?client=${alice.did}`);
  const schema = '{"properties":{"__proto__":{"default":1}},"required":["__proto__",5]}';
  for (const [i, intents] of ['"none"', '[null,1,{"id":5},{},[]]', `[{"id":"a","input_schema":${schema}}]`].entries()) {
    const wrong = `{"id":"m${i}","intents":${intents},"name":{"a":1},"pricing":"x","supported_languages":[{}]}`;
    await sendText(relay, bob, 'MANIFEST', wrong)
      .catch((err) => assert.match(err.message, /INVALID_REQUEST/)); // the relay may refuse it
  }
  hashes.push(`#/agent/${bob.did}`);
  return hashes;
}

for (const [name, prepare] of Object.entries({ texts: fill, 'wrong types': fillWrong })) {
  test(`hostile ${name} are inert on every route`, { timeout: 120_000 }, async (t) => {
    const relay = await startRelay(t), hashes = await prepare(relay), harm = [];
    const page = await openPage(t, relay.url, { viewport: { width: 1000, height: 900 }, allow: isRefusal });
    await connection(page, 'live');
    let verified = 0;
    for (const hash of hashes) {
      await goTo(page, hash);
      await settled(page);
      verified += await page.locator('main [data-verified="true"]').count();
      await openEverything(page, harm, hash.slice(0, 60));
    }
    assert.ok(verified > hashes.length, `only ${verified} marks`);
    assert.deepEqual(harm, []);
  });
}

test('hostile addresses and searches are inert', async (t) => {
  const relay = await startRelay(t), page = await openPage(t, relay.url, { allow: isRefusal }), harm = [];
  await connection(page, 'live');
  const routes = ['', 'thread/', 'agent/', 'agents?intent=', 'agents?q=', 'feed?thread=', 'feed?type=', 'verify?q='];
  const { markup, characters, long } = TEXTS;
  for (const text of [markup, characters, long, '%E0%A4%A', '__proto__', 'constructor', '..%2f..%2fseed']) {
    const some = cut(text, 3000);
    for (const route of routes) {
      await goTo(page, `#/${route}${route.includes('=') ? encodeURIComponent(some) : some}`);
      await see(page, 'main h1', 'attached');
    }
    await look(page, harm, text.slice(0, 40));
    await page.fill('#search', some);
    await page.press('#search', 'Enter');
    await see(page, 'main h1', 'attached');
    await look(page, harm, `search ${text.slice(0, 40)}`);
  }
  assert.deepEqual(harm, []);
});

test('hostile answers of a relay are inert', async (t) => {
  const relay = await startRelay(t), alice = await newAgent(relay), bob = await newAgent(relay);
  const talk = conversation(alice, bob);
  await talk.request();
  const proxy = await startProxy(t, relay), harm = [];
  const page = await openPage(t, proxy.url, { hash: talk.hash, allow: isRefusal });
  const { long, words, ...short } = TEXTS;
  for (const [name, text] of Object.entries({ long, words, mixed: Object.values(short).join(' ') })) {
    const details = { reason: text, now: text };
    const body = { ok: false, error: cut(text, 9000), message: text, retryable: false, details };
    for (const refused of ['/threads/', '/agents', '/events', '/.well-known']) {
      if (name !== 'mixed' && refused !== '/threads/') continue;
      proxy.answer = ({ url }) => url.startsWith(refused) ? { status: 400, body } : undefined;
      await page.reload();
      const others = ['#/', '#/feed', '#/agents', `#/agent/${alice.did}`];
      for (const hash of [talk.hash, ...refused === '/threads/' ? [] : others]) {
        await goTo(page, hash);
        await see(page, 'main h1', 'attached');
        await page.waitForTimeout(300); // some views go on trying
        await look(page, harm, `${refused} refuses with ${name}, ${hash}`);
      }
    }
  }
  assert.deepEqual(harm, []);
});

test('a hostile document of a relay is inert', async (t) => {
  const relay = await startRelay(t), proxy = await startProxy(t, relay), harm = [];
  const page = await openPage(t, proxy.url, { allow: isRefusal });
  for (const [name, whole] of Object.entries(TEXTS)) {
    const text = cut(whole, 20_000); // the module refuses a document of more than 256 KiB
    const key = cut(text, 500), wrong = { ok: true, did: text, url: text, build: text, version: text, reads: text,
      gateways: text, features: [text, 5, null], limits: { [key]: text, rates: { [key]: { perSecond: text } } },
      seconds: { [key]: text, pendingTimeout: text } };
    proxy.answer = ({ url }) => url.startsWith('/.well-known') ? { status: 200, body: wrong } : undefined;
    await page.reload();
    await until(`the build of ${name}`, async () => (await page.textContent('main')).includes(text.slice(0, 4)));
    await page.evaluate(() => document.querySelectorAll('main details').forEach((d) => { d.open = true; }));
    await look(page, harm, name);
  }
  assert.deepEqual(harm, []);
});
