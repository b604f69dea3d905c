// The page without a mouse.
import assert from 'node:assert/strict';
import test from 'node:test';
import { connection, openPage, see, until } from './lib/browser.mjs';
import { seed } from './lib/messages.mjs';
import { startRelay } from './lib/relay.mjs';

const active = (page) => page.evaluate(() => {
  const e = document.activeElement, row = e.closest('[data-id]');
  return { id: e.id, tag: e.tagName, text: e.textContent.trim().slice(0, 40), row: row === e ? row.dataset.id : '' };
});

test('the keyboard reaches the search field and leaves it', async (t) => {
  const relay = await startRelay(t), page = await openPage(t, relay.url);
  await seed(relay);
  await connection(page, 'live');
  await page.keyboard.press('/');
  assert.equal((await active(page)).id, 'search');
  await page.keyboard.type('a/b');
  assert.equal(await page.inputValue('#search'), 'a/b');
  await page.keyboard.press('Escape');
  assert.notEqual((await active(page)).id, 'search');
  await page.keyboard.press('Control+/');
  assert.notEqual((await active(page)).id, 'search');
});

test('arrows move in the feed, and Enter opens', async (t) => {
  const relay = await startRelay(t), { done } = await seed(relay);
  const page = await openPage(t, relay.url, { hash: '#/feed' });
  await see(page, '#feed-list [data-type="RESULT"][data-verified="true"]');
  const rows = await page.locator('#feed-list [data-id]').evaluateAll((all) =>
    all.sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top).map((e) => e.dataset.id));
  await page.focus('#feed-list');
  await page.keyboard.press('ArrowDown');
  assert.equal((await active(page)).row, rows[0]);
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowDown');
  assert.equal((await active(page)).row, rows[2]);
  await page.keyboard.press('ArrowUp');
  assert.equal((await active(page)).row, rows[1]);
  await page.keyboard.press('End');
  assert.equal((await active(page)).row, rows.at(-1));
  await page.keyboard.press('Home');
  assert.equal((await active(page)).row, rows[0]);
  const type = () => page.evaluate(() => document.activeElement.dataset.type);
  while (await type() !== 'RESULT') await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  await page.waitForURL((url) => url.hash.startsWith(`#/thread/${done.id}`));
  await until('the focus on the heading', async () => ['H1', 'MAIN'].includes((await active(page)).tag));
});

test('a new message does not move the focus', async (t) => {
  const relay = await startRelay(t), { active: thread } = await seed(relay);
  const page = await openPage(t, relay.url, { hash: '#/feed' });
  await see(page, '#feed-list [data-type="ACCEPT"]');
  await page.focus('#feed-list');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowDown');
  const { row } = await active(page);
  const news = await thread.result();
  await see(page, `#feed-list [data-id="${news.id}"]`, 'attached');
  assert.equal((await active(page)).row, row);
});

const CONTROLS = 'a[href],button,input,select,textarea,summary';

/** What has the focus: its number among the controls, and whether one sees that it has it. */
const focused = (page) => page.evaluate((controls) => {
  const e = document.activeElement, { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(e);
  if (e === document.body) return undefined;
  const marked = outlineStyle !== 'none' && parseFloat(outlineWidth) > 0 || boxShadow !== 'none';
  return { index: [...document.querySelectorAll(controls)].indexOf(e), what: e.outerHTML.slice(0, 80), marked };
}, CONTROLS);

test('every control can be reached and seen', async (t) => {
  const relay = await startRelay(t), { done } = await seed(relay);
  for (const hash of ['#/', done.hash]) {
    const page = await openPage(t, relay.url, { hash });
    await see(page, 'main [data-thread], main[data-thread]');
    const wanted = await page.locator(CONTROLS).evaluateAll((all) =>
      all.filter((e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0).length);
    const reached = new Set();
    await page.evaluate(() => { document.activeElement.blur(); });
    for (let i = 0; i < wanted * 2 + 20; i++) {
      await page.keyboard.press('Tab');
      const at = await focused(page);
      if (!at && reached.size > 0) break;
      if (!at) continue;
      assert.ok(at.marked, `the focus is not visible: ${at.what}`);
      if (at.index >= 0) reached.add(at.index);
    }
    assert.ok(reached.size >= wanted, `${hash}: ${reached.size} of ${wanted} controls can be reached`);
    await page.context().close();
  }
});

test('a dialog keeps the focus, and gives it back', async (t) => {
  const relay = await startRelay(t), { done } = await seed(relay);
  const page = await openPage(t, relay.url, { hash: done.hash });
  const mark = await see(page, 'main [data-type="RESULT"][data-verified="true"] [data-mark]');
  await mark.focus();
  await page.keyboard.press('Enter');
  await see(page, 'dialog[open]');
  for (let i = 0; i < 25; i++) {
    assert.ok(await page.evaluate(() => document.activeElement.closest('dialog') !== null
      || document.activeElement === document.body), 'the focus is behind the dialog');
    await page.keyboard.press('Tab');
  }
  await page.keyboard.press('Escape');
  await page.locator('dialog').waitFor({ state: 'detached' });
  assert.ok(await mark.evaluate((e) => e === document.activeElement), 'the focus is not back at the mark');
});
