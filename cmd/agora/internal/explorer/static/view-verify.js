// Search and verification: an id, a DID, a thread or a whole envelope.
import { explanation, facts, inspect, json, threadHref, time, typeBadge, verdict } from './parts.js';
import { number, summary } from './text.js';
import { fillWith, foreign, h, visible } from './dom.js';
import * as agora from './agora.js';

const PAGE = 1000;
const PAGES = 20; // how far back an id is searched
const ID = /^[A-Za-z0-9][A-Za-z0-9._:~-]{0,127}$/;
const DID = /^did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}$/;

export function verify(app, params, signal) {
  const area = h('textarea', {
    id: 'verify-text',
    rows: '7',
    spellcheck: 'false',
    autocomplete: 'off',
    placeholder: '{"id":"msg_1","payload":{…},"sender":{…},"sig":"…",…}',
    'aria-describedby': 'verify-help',
  });
  const result = h('div', { class: 'verify-result', role: 'region', 'aria-label': 'Result', 'aria-live': 'polite' });
  const form = h(
    'form',
    {
      class: 'card',
      onsubmit: (e) => {
        e.preventDefault();
        run(area.value);
      },
    },
    h('label', { for: 'verify-text' }, 'An envelope, an id, a DID or a thread'),
    area,
    h(
      'div',
      { class: 'row' },
      h('button', { class: 'primary' }, 'Find or verify'),
      h(
        'span',
        { class: 'quiet', id: 'verify-help' },
        'What you paste stays in this browser. Only an id is asked for at the relay.',
      ),
    ),
  );
  const view = h('section', { class: 'verify' }, h('h1', { tabindex: '-1' }, 'Search and verify'), form, result);
  let stop = new AbortController();

  async function run(text) {
    text = text.trim();
    if (!text) return;
    stop.abort();
    stop = new AbortController();
    const signals = AbortSignal.any([stop.signal, signal]);
    try {
      await (text.startsWith('{') ? check(text) : find(text, signals));
    } catch (err) {
      if (!signals.aborted) fillWith(result, h('div', { class: 'notice', role: 'alert' }, visible(err.message, 500)));
    }
  }

  // Verifies an envelope that was pasted.
  async function check(text) {
    let envelope;
    try {
      envelope = agora.parse(new TextEncoder().encode(text));
    } catch (err) {
      return fillWith(result, verdict('false', 'This is not JSON that the protocol allows', err.message));
    }
    const inner = envelope.envelope;
    if (typeof inner === 'object' && inner !== null && Object.keys(envelope).length === 1) envelope = inner;
    const m = app.model.message(envelope);
    await app.model.checked(m);
    const steps = await explanation(envelope);
    fillWith(
      result,
      h(
        'article',
        { class: 'card', data: { id: visible(m.id, 128), type: m.type, verified: m.status } },
        m.status === 'true'
          ? verdict('true', 'Verified: its sender signed exactly this')
          : verdict(m.status, m.status === 'false' ? 'Failed' : 'Not checkable here', m.problem),
        facts(
          ['Type', typeBadge(m.type)],
          ['From', m.from && app.agent(m.from, m.name)],
          ['To', m.type !== 'UNKNOWN' ? app.agent(m.to) : undefined],
          ['Sent', Number.isFinite(m.ts) ? time(m.ts) : undefined],
          ['Says', foreign(summary(m), 400)],
          ['Thread', m.threadId && h('a', { href: threadHref(m.threadId) }, h('code', null, visible(m.threadId, 128)))],
        ),
        h('h2', null, 'What was checked'),
        steps,
        h('h2', null, 'Envelope'),
        json(envelope),
      ),
    );
  }

  async function find(text, signals) {
    if (DID.test(text)) return app.go(`#/agent/${encodeURIComponent(text)}`);
    if (!ID.test(text)) {
      return fillWith(
        result,
        h(
          'div',
          { class: 'notice', role: 'alert' },
          text.startsWith('did:')
            ? 'This is not a did:key of Ed25519. It has 56 characters and begins with did:key:z6Mk.'
            : 'An id has 1 to 128 letters, digits or ._:~- characters. An envelope begins with {.',
        ),
      );
    }
    const known = [...app.model.messages.values()].filter((m) => m.id === text);
    if (known.length > 0) return hits(known, text);
    if (await isThread(text, signals)) return app.go(threadHref(text));
    let searched = 0;
    for (let page = 0, before = 'end', hasMore = true; page < PAGES && hasMore; page++) {
      fillWith(result, h('p', { class: 'loading' }, `Searching messages: ${number(searched)} so far`));
      const answer = await app.reader.get('/events', { before, limit: PAGE }, signals);
      searched += answer.events.length;
      const found = answer.events.filter((e) => e.id === text).map((e) => app.model.message(e));
      if (found.length > 0) return hits(found, text);
      ({ cursor: before, hasMore } = answer);
    }
    fillWith(
      result,
      h(
        'div',
        { class: 'notice' },
        h('p', null, 'Nothing here has the id ', h('code', null, visible(text, 128)), '.'),
        h(
          'p',
          { class: 'quiet' },
          `The newest ${number(searched)} messages and all threads that you may see were searched. ` +
            'Messages that have expired are gone.',
        ),
      ),
    );
  }

  async function isThread(id, signals) {
    if (app.model.threadsWithId(id).length > 0) return true;
    try {
      await app.reader.get(`/threads/${encodeURIComponent(id)}`, {}, signals);
      return true;
    } catch (err) {
      if (err.status === 404) return false;
      throw err;
    }
  }

  const hits = (messages, id) => {
    if (messages.length === 1) inspect(messages[0], app);
    fillWith(
      result,
      h(
        'ul',
        { class: 'hits' },
        messages.map((m) =>
          h(
            'li',
            { class: 'card', data: { id: visible(m.id, 128), type: m.type, verified: m.status } },
            h(
              'div',
              { class: 'row' },
              typeBadge(m.type),
              app.agent(m.from, m.name),
              h('span', { class: 'grow' }),
              time(m.ts),
            ),
            h('p', null, foreign(summary(m), 300)),
            h(
              'button',
              { type: 'button', class: 'small', onclick: () => inspect(m, app) },
              `Inspect ${visible(id, 40)}`,
            ),
          ),
        ),
      ),
    );
    const tell = () =>
      [...result.querySelectorAll('[data-verified]')].forEach((element, i) => {
        element.dataset.verified = messages[i].status;
      });
    app.model.addEventListener('checked', tell, { signal });
    tell();
  };

  const text = app.pasted ?? params.get('q') ?? '';
  app.pasted = undefined;
  if (text) {
    area.value = text;
    run(text);
  }
  return {
    title: 'Verify',
    element: view,
    search: (words) => {
      area.value = words;
      run(words);
    },
  };
}
