// The view of the API shows the OpenAPI document of the relay, and treats it as text of others.
import assert from 'node:assert/strict';
import test from 'node:test';
import { connection, goTo, isRefusal, openPage, see } from './lib/browser.mjs';
import { startPage, startRelay } from './lib/relay.mjs';

const operation = (id) => `[data-operation="${id}"]`;

test('routes, parameters, answers and commands', async (t) => {
  const relay = await startRelay(t, { flags: ['--jobs'] });
  const page = await openPage(t, relay.url);
  await connection(page, 'live');
  await page.click('[data-tab="api"]');
  await see(page, operation('postEvent'));
  const document = await (await fetch(`${relay.url}/openapi.json`)).json();
  const described = Object.values(document.paths).flatMap((item) =>
    ['get', 'head', 'post', 'put', 'patch', 'delete'].filter((m) => item[m]).map((m) => item[m].operationId));
  const shown = await page.locator('[data-operation]').evaluateAll((all) => all.map((e) => e.dataset.operation));
  assert.deepEqual(shown.toSorted(), described.toSorted());
  assert.ok(shown.includes('jobsHire') && !shown.includes('hubSend'), 'only the gateways that are on');

  await page.click(`${operation('getEvents')} > summary`);
  await see(page, `${operation('getEvents')}[open] .api-answer`);
  const text = await page.locator(operation('getEvents')).innerText();
  for (const word of ['recipient', 'from 1 to 1000', '429', 'text/event-stream', 'Retry-After']) {
    assert.ok(text.includes(word), `the details have no ${word}`);
  }
  const command = await page.locator(`${operation('getEvents')} .command code`).innerText();
  assert.equal(command, `curl '${relay.url}/events?cursor=0&timeout=0'`);
  assert.equal((await fetch(command.slice("curl '".length, -1))).status, 200);
});

test('an address opens one route', async (t) => {
  const relay = await startRelay(t);
  const page = await openPage(t, await startPage(t, relay.url), { hash: '#/api/postEvent' }); // over agora page
  await see(page, `${operation('postEvent')}[open] .api-answer`);
  assert.equal(await page.locator('[data-operation][open]').count(), 1);
  const command = await page.locator(`${operation('postEvent')} .command code`).innerText();
  assert.ok(command.endsWith(` ${relay.url}/events`), command);
  const body = /-d '(.*)' /.exec(command)[1];
  const answer = await (await fetch(`${relay.url}/events`, { method: 'POST', body })).json();
  assert.equal(answer.error, 'STALE_TIMESTAMP', 'the example is valid except for its time');
});

test('a hostile document stays text', async (t) => {
  const relay = await startRelay(t);
  const page = await openPage(t, relay.url, { allow: isRefusal });
  const evil = '<img src=x onerror=alert(1)>\u202e`<b>`';
  const loop = { $ref: '#/components/schemas/Loop', description: evil };
  let body = JSON.stringify({
    info: { description: evil },
    tags: [{ name: evil, description: evil }],
    paths: { [`/${evil}`]: { get: { operationId: 'evil', tags: [evil], summary: evil, description: `- ${evil}`,
      parameters: [{ name: evil, in: 'query', required: true, schema: loop }, { $ref: '#/nowhere/__proto__' }],
      responses: { [evil]: { description: evil, content: { 'application/json': { schema: loop, example: evil } } } } } } },
    components: { schemas: { Loop: { type: 'object', properties: { inner: loop, list: { type: 'array', items: loop } } } } },
  });
  await page.route('**/openapi.json', (route) => route.fulfill({ contentType: 'application/json', body }));
  await goTo(page, '#/api/evil');
  await see(page, `${operation('evil')}[open] .api-answer`);
  await page.locator('.api-answer summary').click();
  assert.equal(await page.locator('main :is(img, b, script)').count(), 0);
  assert.ok(!(await page.locator('main').innerText()).includes('\u202e'), 'hidden characters are visible');
  for (body of ['[]', '{"paths":{"/":{"get":7}},"tags":[{"name":1}]}', '{', '"text"', 'null']) {
    await goTo(page, '#/');
    await goTo(page, '#/api');
    await see(page, '.api h1');
    await page.locator('.api .loading').waitFor({ state: 'detached' });
  }
});
