// Chromium, and what the tests look at in a page.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { after } from 'node:test';
import { chromium } from 'playwright-core';
import { atEnd } from './cleanup.mjs';

const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium-headless-shell';
if (!existsSync(CHROMIUM)) throw new Error(`${CHROMIUM} is missing; run ci/install, or set CHROMIUM`);

const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'];

/** How long the tests wait for what must happen. It is long because the machine may be busy. */
export const PATIENCE = 20_000;

let starting; // one browser for all tests of a file
after(async () => (await starting)?.close());

/** Opens the page of a relay in its own window. Things that must not happen are dialogs, errors, violations of the
 *  Content-Security-Policy and requests to other origins. The test fails when it ends, unless allow(what) returns true
 *  for each of them. */
export async function openPage(t, url, { hash = '#/', allow = () => false, init = [], ...options } = {}) {
  starting ??= chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
  const context = await (await starting).newContext({ viewport: { width: 1440, height: 900 }, colorScheme: 'light',
    locale: 'en-GB', timezoneId: 'Europe/Berlin', reducedMotion: 'reduce', ...options });
  context.setDefaultTimeout(PATIENCE);
  const problems = [], note = (what) => { if (!allow(what)) problems.push(what); };
  await context.exposeFunction('reportViolation', (text) => note(`CSP: ${text}`));
  await context.addInitScript(() => {
    addEventListener('securitypolicyviolation', ({ violatedDirective, blockedURI, sample }) =>
      globalThis.reportViolation(`${violatedDirective} ${blockedURI} ${sample}`));
  });
  for (const script of init) await context.addInitScript(script);
  const page = await context.newPage();
  page.on('dialog', (dialog) => { note(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('pageerror', (err) => note(`error: ${err.stack}`));
  page.on('console', (message) => {
    if (message.type() === 'error') note(`console: ${message.text()} ${message.location().url}`);
  });
  page.on('request', (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) note(`request: ${request.url()}`);
  });
  atEnd(t, async () => {
    await context.close();
    for (const problem of problems) t.diagnostic(problem); // node shows only the first error of a test
    assert.deepEqual(problems, [], 'problems of the page');
  });
  await page.goto(`${url}/${hash}`);
  return page;
}

/** A console message of a request that the network or the relay has refused. The page has to live with these. */
export const isRefusal = (what) => what.startsWith('console: Failed to load resource');

/** The selector of a message. */
export const message = (e, more = '') => `[data-id="${e.id ?? e}"]${more}`;

/** Waits until an element matches, and returns the first. */
export async function see(page, selector, state = 'visible') {
  const found = page.locator(selector).first();
  await found.waitFor({ state });
  return found;
}

/** Waits until check returns a true value, and returns that. */
export async function until(what, check, patience = PATIENCE) {
  for (const end = Date.now() + patience; ;) {
    const value = await check();
    if (value) return value;
    if (Date.now() > end) assert.fail(`waited in vain: ${what}`);
    await new Promise((resume) => setTimeout(resume, 50));
  }
}

/** Waits until the text of an element matches. */
export const says = (page, selector, words) => until(`${selector} says ${words}`, async () =>
  words.test((await page.locator(selector).allTextContents()).join('\n')));

/** Waits until the view has read and checked what it shows. */
export async function settled(page) {
  await see(page, 'main h1', 'attached');
  await until('that nothing loads', () => page.evaluate(() => !document.querySelector('main [data-verified="pending"]')
    && ![...document.querySelectorAll('main .loading')].some((e) => e.checkVisibility())));
}

/** The ids of the messages that the list shows, from top to bottom. */
export const shownIds = (page, list = '#feed-list') => page.locator(`${list} [data-id]`).evaluateAll((rows) =>
  rows.map((row) => [row.getBoundingClientRect().top, row.dataset.id]).sort((a, b) => a[0] - b[0]).map(([, id]) => id));

/** Goes to a route without loading the page again. */
export async function goTo(page, hash) {
  await page.evaluate((to) => { location.hash = to; }, hash);
}

/** Waits until the connection has this state. */
export const connection = (page, state) => see(page, `#connection[data-state="${state}"]`, 'attached');
