// The directory of agents, and one agent.
import { command, copyMark, empty, facts, inspect, json, mark, problem, relayFlag, time } from './parts.js';
import { intents, number, plural, quoted, shortDID } from './text.js';
import { eachFrame, fillWith, foreign, h, visible } from './dom.js';
import { row, update } from './view-feed.js';

const PAGE = 50;
const MAX_ROWS = 2000;

const onlineMark = (is) => h('span', { class: 'online', data: { is: String(!!is) } }, is ? 'online' : 'offline');

/** Returns the intents of a manifest as links to the directory. */
const chips = (list) =>
  h(
    'ul',
    { class: 'chips' },
    list
      .slice(0, 12)
      .map((i) => h('li', null, h('a', { href: `#/agents?intent=${encodeURIComponent(i.id)}` }, foreign(i.id, 60)))),
    list.length > 12 && h('li', { class: 'quiet' }, `and ${list.length - 12} more`),
  );

export function agents(app, params, signal) {
  const input = (id, label, placeholder, name) => {
    const element = h('input', { id, placeholder, autocomplete: 'off', spellcheck: 'false' });
    element.value = params.get(name) ?? '';
    element.addEventListener('input', () => {
      clearTimeout(delay);
      delay = setTimeout(search, 300);
    });
    return element;
  };
  let delay;
  let cursor;
  let query = {};
  let stop = new AbortController();
  let shown = 0;
  const intent = input('agents-intent', 'Intent', 'text.upper', 'intent');
  const text = input('agents-text', 'Text', 'a word', 'q');
  const online = h('input', {
    id: 'agents-online',
    type: 'checkbox',
    checked: params.get('online') === 'true',
    onchange: () => search(),
  });
  const list = h('ul', { class: 'agent-list' });
  const count = h('span', { class: 'quiet', role: 'status' });
  const note = h('div');
  const more = h('button', { type: 'button', hidden: true, onclick: () => load() }, 'Show more');
  const view = h(
    'section',
    { class: 'agents' },
    h('div', { class: 'feed-head' }, h('h1', { tabindex: '-1' }, 'Agents'), count),
    h(
      'form',
      {
        class: 'filter-row card',
        onsubmit: (e) => {
          e.preventDefault();
          search();
        },
      },
      h('label', null, h('span', null, 'Intent, exactly'), intent),
      h('label', null, h('span', null, 'Text'), text),
      h('label', { class: 'check' }, online, h('span', null, 'Online only')),
    ),
    note,
    list,
    more,
  );

  function search() {
    query = { intent: intent.value.trim(), q: text.value.trim(), ...(online.checked && { online: 'true' }) };
    const words = Object.fromEntries(Object.entries(query).filter(([, v]) => v));
    app.replace(`#/agents${Object.keys(words).length ? `?${new URLSearchParams(words)}` : ''}`);
    stop.abort();
    stop = new AbortController();
    cursor = undefined;
    shown = 0;
    fillWith(list);
    load();
  }

  async function load() {
    const signals = AbortSignal.any([stop.signal, signal]);
    more.disabled = true;
    fillWith(note, shown === 0 && h('p', { class: 'loading' }, 'Loading'));
    try {
      const began = shown;
      for (let hasMore = true; hasMore && shown < began + PAGE && shown < MAX_ROWS;) {
        const page = await app.reader.get('/agents', { ...query, cursor, limit: PAGE }, signals);
        if (signals.aborted) return;
        list.append(...page.agents.map(entry));
        shown += page.agents.length;
        ({ cursor, hasMore } = page);
        more.hidden = !hasMore || shown >= MAX_ROWS;
      }
      fillWith(count, `${plural(shown, 'manifest')}${more.hidden ? '' : ' so far'}`);
      fillWith(note, shown === 0 && nobody());
    } catch (err) {
      if (!signals.aborted) fillWith(note, problem(err));
    }
    more.disabled = false;
  }

  function nobody() {
    if (query.intent || query.q || query.online)
      return empty(
        'No agent matches',
        h('p', null, 'The intent must match exactly. The text is searched in names, descriptions and intents.'),
      );
    const at = relayFlag(app.address);
    return empty(
      'No agent has announced itself',
      h('p', null, 'Any program can be one. This one writes capital letters:'),
      command('agora keygen bob.key', '1. Create an identity'),
      command(
        `agora work${at} --key bob.key --intent text.upper --input text -- tr a-z A-Z`,
        '2. Announce the service, and work',
      ),
    );
  }

  function entry(a) {
    const m = app.model.message(a.envelope);
    const manifest = m.payload;
    const markPlace = h('span', { class: 'm-mark' });
    const element = h(
      'li',
      { class: 'card', data: { id: visible(m.id, 128), type: m.type, verified: m.status } },
      h(
        'div',
        { class: 'row' },
        markPlace,
        h(
          'a',
          { class: 'agent-title', href: `#/agent/${encodeURIComponent(m.from)}` },
          foreign(manifest.name ?? manifest.id ?? 'Agent', 80),
        ),
        onlineMark(a.online),
        h('span', { class: 'grow' }),
        h('span', { class: 'quiet' }, 'seen ', time(Date.parse(a.lastSeen))),
      ),
      manifest.description && h('p', null, foreign(manifest.description, 240)),
      chips(intents(manifest)),
      app.agent(m.from),
    );
    watch(element, markPlace, m, app, signal);
    return element;
  }

  signal.addEventListener('abort', () => clearTimeout(delay));
  search();
  return { title: 'Agents', element: view };
}

/** Keeps the mark of a message up to date. */
function watch(element, place, m, app, signal) {
  const tell = () => {
    element.dataset.verified = m.status;
    fillWith(
      place,
      mark(m, (m) => inspect(m, app)),
    );
    if (m.status !== 'pending') app.model.removeEventListener('checked', tell);
  };
  app.model.addEventListener('checked', tell, { signal });
  tell();
}

export function oneAgent(app, _params, signal, did) {
  const head = h('div');
  const manifests = h('div', { class: 'manifests' });
  const ask = h('div', { class: 'card' });
  const recent = h('div', { class: 'card message-list' });
  // What comes below the manifests is shown with them, so that nothing moves.
  const below = h('div', { hidden: true }, ask, recent);
  const view = h('section', { class: 'agent-page' }, head, manifests, below);
  const short = shortDID(did);
  const at = relayFlag(app.address);
  const heading = (name, online, lastSeen) =>
    fillWith(
      head,
      h(
        'div',
        { class: 'thread-head' },
        h('h1', { tabindex: '-1' }, name ? foreign(name, 80) : h('code', null, short)),
        online !== undefined && onlineMark(online),
      ),
      facts(
        ['DID', h('code', { class: 'break' }, visible(did, 80)), ' ', copyMark(did, 'the DID')],
        ['Last seen', Number.isFinite(lastSeen) ? time(lastSeen) : '—'],
      ),
    );

  async function read() {
    try {
      const { agent: a } = await app.reader.get(`/agents/${encodeURIComponent(did)}`, {}, signal);
      const all = a.manifests.map((e) => app.model.message(e));
      heading(all[0]?.payload.name, a.online, Date.parse(a.lastSeen));
      fillWith(manifests, all.map(manifestCard));
      const first = all.flatMap((m) => intents(m.payload))[0];
      const addresses = all.flatMap((m) => (Array.isArray(m.payload.addresses) ? m.payload.addresses : []));
      howToAsk(first?.id, example(first?.input_schema), addresses);
    } catch (err) {
      if (signal.aborted) return;
      fillWith(
        manifests,
        err.code === 'AGENT_NOT_FOUND'
          ? h('p', { class: 'notice' }, 'This agent has no manifest here. It may still send and receive messages.')
          : problem(err),
      );
    }
    below.hidden = false;
  }

  function manifestCard(m) {
    const p = m.payload;
    const place = h('span', { class: 'm-mark' });
    const price =
      p.pricing?.model === 'fixed'
        ? `${number(p.pricing.fixed_price)} ${visible(p.pricing.currency ?? '', 12)} each`
        : p.pricing?.model === 'metered'
          ? `${number(p.pricing.metered_rate)} ${visible(p.pricing.currency ?? '', 12)} for each ` +
            visible(p.pricing.metered_unit ?? 'unit', 40)
          : visible(p.pricing?.model ?? '', 40);
    const element = h(
      'article',
      { class: 'card', data: { id: visible(m.id, 128), type: m.type, verified: m.status } },
      h(
        'div',
        { class: 'row' },
        place,
        h('h2', null, foreign(p.name ?? p.id ?? 'Manifest', 80)),
        p.version && h('span', { class: 'quiet' }, foreign(p.version, 40)),
        h('span', { class: 'grow' }),
        time(m.ts),
      ),
      p.description && h('p', null, foreign(p.description, 1000)),
      facts(
        ['Price', price || undefined],
        [
          'Languages',
          Array.isArray(p.supported_languages) ? foreign(p.supported_languages.map(String).join(', '), 200) : undefined,
        ],
        ['Privacy', p.privacy_policy ? foreign(String(p.privacy_policy), 200) : undefined],
      ),
      h('h3', null, 'Intents'),
      h(
        'ul',
        { class: 'intents' },
        intents(p).map((i) =>
          h(
            'li',
            null,
            h('a', { href: `#/agents?intent=${encodeURIComponent(i.id)}` }, h('code', null, visible(i.id, 100))),
            i.name && [' ', foreign(i.name, 100)],
            (i.input_schema || i.output_schema) &&
              h(
                'details',
                null,
                h('summary', null, 'Input and output'),
                i.input_schema !== undefined && [h('h4', null, 'Input'), json(i.input_schema)],
                i.output_schema !== undefined && [h('h4', null, 'Output'), json(i.output_schema)],
              ),
          ),
        ),
      ),
      h('details', null, h('summary', null, 'Envelope'), json(m.envelope)),
    );
    watch(element, place, m, app, signal);
    return element;
  }

  /** Shows a command for each protocol. addresses is what the manifests say, in any form. */
  function howToAsk(intent = 'echo', params = {}, addresses = []) {
    const skill = quoted(visible(intent, 200));
    const others = {
      hub: ['At the hub', (to) => `agora hub send ${to} 'Hello'`],
      jobs: ['In the registry of jobs', (to) => `agora jobs hire ${to} ${skill} --budget CREDITS`],
      a2a: ['Over A2A', (to) => `agora a2a call ${to} 'Hello'`],
    };
    const known = addresses
      .filter((a) => Object.hasOwn(others, a?.protocol) && typeof a.address === 'string' && !a.address.startsWith('-'))
      .slice(0, 16)
      .map(({ protocol, address }) => {
        const [label, ask] = others[protocol];
        return command(ask(quoted(visible(address, 300))), label);
      });
    fillWith(
      ask,
      h('h2', null, 'How to ask this agent'),
      command(
        `agora ask ${skill}${at} --key my.key --to ${quoted(did)} --params ${quoted(JSON.stringify(params))}`,
        known.length > 0 && 'With Agora',
      ),
      known,
      h(
        'p',
        { class: 'quiet' },
        'Create my.key with agora keygen. Add --seal to agora ask so that only this agent can read the request.',
        known.length > 0 && ' The other addresses are those that the agent names.',
      ),
    );
  }

  async function readRecent() {
    try {
      const [sent, received] = await Promise.all(
        ['sender', 'recipient'].map((role) =>
          app.reader.get('/events', { before: 'end', [role]: did, limit: 20 }, signal),
        ),
      );
      const messages = [
        ...new Map(
          [...sent.events, ...received.events].map((e) => app.model.message(e)).map((m) => [m.key, m]),
        ).values(),
      ]
        .sort((a, b) => b.ts - a.ts)
        .slice(0, 20);
      const rows = messages.map((m) => [row(m, app), m]);
      const draw = eachFrame(() => rows.forEach(([element, m]) => update(element, m, app)));
      app.model.addEventListener('checked', draw, { signal });
      rows.forEach(([element]) => {
        element.tabIndex = 0;
        element.addEventListener('keydown', (e) => {
          if (e.key === 'Enter' && e.target === element) element.click();
        });
      });
      fillWith(
        recent,
        h('h2', null, 'Its latest messages'),
        rows.length > 0 ? rows.map(([element]) => element) : h('p', { class: 'quiet' }, 'None that you may see.'),
        h('p', null, h('a', { href: `#/feed?sender=${encodeURIComponent(did)}` }, 'All messages that it sent')),
      );
    } catch (err) {
      if (!signal.aborted) fillWith(recent, problem(err));
    }
  }

  heading();
  howToAsk();
  read();
  readRecent();
  return { title: `Agent ${short}`, element: view };
}

/** Returns input that fits a simple JSON Schema: its examples or defaults, or empty values of the right type. */
function example(schema) {
  if (schema?.properties === null || typeof schema?.properties !== 'object') return {};
  const value = (s) =>
    s?.examples?.[0] ??
    s?.default ??
    s?.enum?.[0] ??
    { string: '…', number: 1, integer: 1, boolean: true, array: [], object: {} }[s?.type] ??
    null;
  const names =
    Array.isArray(schema.required) && schema.required.length > 0 ? schema.required : Object.keys(schema.properties);
  return Object.fromEntries(names.slice(0, 8).map((name) => [visible(name, 40), value(schema.properties[name])]));
}
