// One thread: its state, who may do what next, its offers, and each of its messages.
import {
  copyButton,
  copyMark,
  countdown,
  empty,
  facts,
  inspect,
  json,
  mark,
  payload,
  problem,
  stateBadge,
  threadCommands,
  time,
  typeBadge,
} from './parts.js';
import { chainCard, continued, decider } from './chain-panel.js';
import { plural, priceText, shortDID, span, summary } from './text.js';
import { arrange, fillWith, foreign, h, svg, visible } from './dom.js';
import * as agora from './agora.js';

const SPACING = 500; // ms between two reads of the thread, at least
const IDLE = 60_000; // ms between two reads while nothing happens

export function thread(app, params, signal, id) {
  const client = params.get('client') ?? '';
  const { model } = app;
  const head = h('div');
  const top = h('div', { class: 'thread-top' });
  const chain = h('div');
  const offers = h('div');
  const list = h('ol');
  const gone = h('p', { class: 'quiet' });
  const lines = h('div', { class: 'timeline', hidden: true }, h('h2', null, 'Messages'), gone, list);
  const foot = h('div');
  const view = h('section', { class: 'thread' }, head, top, chain, offers, lines, foot);
  const cards = new Map(); // by key, so that what the reader has opened stays open
  let shown = '';
  let reading = false;
  let again = false;
  let timer;
  let stop = new AbortController();
  let drawnKey;
  let drawnFor; // the DID of the relay, which may be known later
  let drawing; // the newest drawing of the chain
  fillWith(head, h('h1', { tabindex: '-1' }, 'Thread'), h('p', { class: 'loading' }, 'Loading'));

  async function read() {
    if (reading) {
      again = true;
      return;
    }
    reading = true;
    clearTimeout(timer);
    try {
      const answer = await app.reader.get(`/threads/${encodeURIComponent(id)}`, { client }, signal);
      draw(answer);
    } catch (err) {
      if (signal.aborted) return;
      const temporary = err.code && (!err.status || err.status >= 500 || err.status === 429);
      if (!temporary) failed(err);
      else again ||= !shown;
    }
    reading = false;
    readIn(again ? SPACING : IDLE);
    again = false;
  }

  function readIn(ms) {
    clearTimeout(timer);
    if (!signal.aborted) timer = setTimeout(read, ms);
  }

  function failed(err) {
    shown = '';
    drawnKey = undefined;
    for (const part of [top, chain, offers, foot]) fillWith(part);
    lines.hidden = true;
    const locked = model.about?.reads === 'parties';
    fillWith(
      head,
      h('h1', { tabindex: '-1' }, 'Thread'),
      empty(
        err.code === 'THREAD_NOT_FOUND' ? 'No such thread here' : 'The thread cannot be read',
        h('p', null, h('code', null, visible(id, 128))),
        problem(err),
        locked && h('p', null, 'This relay shows a thread to its parties only. Load the key of a party.'),
        locked && h('button', { type: 'button', onclick: app.askForKey }, 'Load your key'),
      ),
    );
  }

  // Returns the message of an envelope. Its card is made only once.
  function messageOf(envelope) {
    const m = model.message(envelope);
    const known = cards.get(m.key)?.m;
    return known && JSON.stringify(known.envelope) === JSON.stringify(envelope) ? known : m;
  }

  function draw({ thread: t, events, expired, removed }) {
    const text = JSON.stringify([t, expired, events.map((e) => e.id), model.about?.did]) + !!model.me;
    if (text === shown) return;
    shown = text;
    drawnFor = model.about?.did;
    stop.abort();
    stop = new AbortController();
    const ends = AbortSignal.any([stop.signal, signal]);
    const messages = events.map(messageOf);
    const request = messages.find((m) => m.type === 'REQUEST' && m.from === t.client);
    const deadline = Date.parse(t.deadline);
    const focused = head.contains(document.activeElement);
    view.dataset.thread = visible(t.id, 128);
    view.dataset.state = t.state;
    const intent = request && (request.payload.intent ?? '');
    fillWith(
      head,
      h(
        'div',
        { class: 'thread-head' },
        h('h1', { tabindex: '-1' }, intent ? foreign(intent, 80) : 'Thread'),
        stateBadge(t.state, 'thread-state'),
        Number.isFinite(deadline) && countdown(deadline, model, ends, () => readIn(SPACING)),
      ),
      request?.payload.title && h('p', { class: 'lead' }, foreign(request.payload.title, 200)),
      facts(
        ['Thread', h('code', { class: 'break' }, visible(t.id, 128)), ' ', copyMark(t.id, 'the id')],
        ['Client', app.agent(t.client)],
        [
          'Agent',
          t.agent
            ? app.agent(t.agent)
            : t.recipient
              ? [app.agent(t.recipient), h('span', { class: 'quiet' }, ' named in the request')]
              : undefined,
        ],
        ['Budget', limit(request)],
        ['Home', decider(request, model.about)],
        ['Continues', continued(request, model)],
      ),
    );
    if (focused) head.querySelector('h1').focus({ preventScroll: true });
    fillWith(
      top,
      h('div', { class: 'card' }, diagram(t)),
      h('div', { class: 'card' }, h('h2', null, 'What can happen next'), next(t, app)),
    );
    drawChain(request, messages, expired > 0 || removed?.length > 0);
    drawOffers(t, messages);
    drawLines(t, messages, expired);
    if (drawnKey !== t.id)
      fillWith(
        foot,
        h('div', { class: 'card' }, h('h2', null, 'Fetch it yourself'), threadCommands(app.address, t.id, t.client)),
      );
    drawnKey = t.id;
  }

  // The card is there when all messages are checked.
  async function drawChain(request, messages, gone) {
    const mine = (drawing = {});
    const card = request && (await chainCard(request, messages, gone, app));
    if (drawing === mine) fillWith(chain, card);
  }

  function drawOffers(t, messages) {
    const all = messages.filter((m) => m.type === 'OFFER');
    if (all.length === 0) return fillWith(offers);
    const open = new Set(t.offers.map((o) => `${o.agent} ${o.id}`));
    const cheapest = Math.min(...all.map((m) => Number(m.payload.price?.amount ?? Infinity)));
    fillWith(
      offers,
      h('h2', null, plural(all.length, 'offer')),
      h(
        'div',
        { class: 'offers' },
        all.map((m) => {
          const p = m.opened ?? m.payload;
          const until = Date.parse(p.valid_until);
          const chosen = t.agent === m.from;
          const state = chosen
            ? 'accepted'
            : t.agent
              ? 'not chosen'
              : !open.has(m.key)
                ? 'withdrawn'
                : until < model.now()
                  ? 'no longer valid'
                  : 'open';
          return h(
            'div',
            { class: 'offer', data: { is: state } },
            h('div', { class: 'row' }, app.agent(m.from, m.name), h('span', { class: 'offer-state' }, state)),
            h(
              'p',
              { class: 'price' },
              m.sealed && !m.opened ? 'sealed' : (priceText(p.price) ?? 'no price'),
              all.length > 1 && p.price?.amount === cheapest && h('span', { class: 'quiet' }, ' lowest'),
            ),
            facts(
              ['Takes', Number.isFinite(p.eta_seconds) ? span(p.eta_seconds) : undefined],
              ['Valid until', Number.isFinite(until) ? time(until) : undefined],
              ['Plan', p.plan ? foreign(p.plan, 500) : undefined],
            ),
          );
        }),
      ),
    );
  }

  // The timeline has the messages, and the transitions whose messages have expired or that the clock made.
  function drawLines(t, messages, expired) {
    const at = new Map(t.transitions.filter((x) => x.id).map((x) => [`${x.by} ${x.id}`, Date.parse(x.at)]));
    const known = new Set(messages.map((m) => m.key));
    const entries = [
      ...messages.map((m) => ({ at: at.get(m.key) ?? m.ts, m })),
      ...t.transitions.filter((x) => !x.id || !known.has(`${x.by} ${x.id}`)).map((x) => ({ at: Date.parse(x.at), x })),
    ];
    entries.sort((a, b) => a.at - b.at);
    const moves = new Map(t.transitions.filter((x) => x.id).map((x) => [`${x.by} ${x.id}`, x]));
    fillWith(
      gone,
      expired > 0 && `${plural(expired, 'message')} of this thread ${expired === 1 ? 'has' : 'have'} expired.`,
    );
    arrange(
      list,
      entries.map(({ at, m, x }) => (m ? card(m, at, moves.get(m.key)) : h('li', null, passed(x, at)))),
    );
    lines.hidden = false;
  }

  function card(m, at, move) {
    const known = cards.get(m.key);
    if (known?.m === m && known.opened === m.opened) return known.item;
    const says = m.opened ? summary({ ...m, payload: m.opened }) : summary(m);
    const element = h(
      'article',
      { class: 'card message-card', data: { id: visible(m.id, 128), type: m.type, verified: m.status } },
      h(
        'div',
        { class: 'row' },
        h('span', { class: 'm-mark' }),
        typeBadge(m.type),
        app.agent(m.from, m.name),
        h('span', { class: 'arrow', 'aria-hidden': 'true' }, '→'),
        app.agent(m.to),
        h('span', { class: 'grow' }),
        time(at),
        move && move.from !== move.to && h('span', { class: 'move' }, visible(move.from), ' → ', stateBadge(move.to)),
      ),
      h('p', { class: 'says' }, foreign(says, 400)),
      h(
        'div',
        { class: 'more' },
        h('details', { open: m.type === 'RESULT' || m.type === 'ERROR' }, h('summary', null, 'Payload'), payload(m)),
        h(
          'details',
          null,
          h('summary', null, 'Envelope'),
          h(
            'div',
            { class: 'row' },
            copyButton(() => agora.canonicalText(m.envelope), 'Copy the canonical form'),
            h('button', { type: 'button', class: 'small', onclick: () => inspect(m, app) }, 'What was checked'),
          ),
          json(m.envelope),
        ),
        app.proof(m),
      ),
    );
    const item = h('li', null, element);
    cards.set(m.key, { item, element, m, opened: m.opened });
    setMark(element, m);
    return item;
  }

  function setMark(element, m) {
    element.dataset.verified = m.status;
    fillWith(
      element.querySelector('.m-mark'),
      mark(m, (m) => inspect(m, app)),
    );
  }

  const passed = (x, at) =>
    h(
      'div',
      { class: 'card passed' },
      h(
        'div',
        { class: 'row' },
        typeBadge(visible(x.type, 20)),
        x.by ? app.agent(x.by) : h('span', null, 'the relay’s clock'),
        h('span', { class: 'grow' }),
        time(at),
        h('span', { class: 'move' }, visible(x.from), ' → ', stateBadge(x.to)),
      ),
      h(
        'p',
        { class: 'quiet' },
        x.id ? 'The message has expired, or you may not see it. The record remains.' : 'The time was over.',
      ),
    );

  function limit(request) {
    const c = request?.payload.constraints;
    const parts = [
      typeof c?.max_cost_usd === 'number' && `at most ${priceText({ amount: c.max_cost_usd, currency: 'USD' })}`,
      typeof c?.deadline === 'string' && `by ${visible(c.deadline, 40)}`,
    ].filter(Boolean);
    return parts.length > 0 ? parts.join(', ') : undefined;
  }

  model.addEventListener(
    'checked',
    () => {
      for (const [key, { element, m, opened }] of cards) {
        if (element.dataset.verified !== m.status) setMark(element, m);
        if (m.opened === opened) continue;
        cards.delete(key);
        shown = '';
        read();
      }
    },
    { signal },
  );
  model.addEventListener('change', () => shown && drawnFor !== model.about?.did && read(), { signal });
  signal.addEventListener('abort', () => {
    clearTimeout(timer);
    stop.abort();
  });
  read();
  let last = app.feed.newest;
  return {
    title: 'Thread',
    element: view,
    update: () => {
      const news = [...app.feed.since(last)];
      last = app.feed.newest;
      if (news.some((m) => m.threadId === id)) read();
    },
    reread: read,
  };
}

/** Returns the list of who may do what next. */
function next(t, app) {
  const rule = (type, who, ...words) => h('li', null, typeBadge(type), h('span', null, who, ' ', words));
  const both = [app.agent(t.client), ' or ', app.agent(t.agent)];
  switch (t.state) {
    case 'PENDING':
      return h(
        'ul',
        { class: 'next' },
        rule('OFFER', t.recipient ? app.agent(t.recipient) : 'Any agent', 'may offer.'),
        t.offers.length > 0
          ? rule(
              'ACCEPT',
              app.agent(t.client),
              t.offers.length === 1
                ? ['may accept the offer of ', app.agent(t.offers[0].agent), '.']
                : `may accept one of ${t.offers.length} offers.`,
            )
          : h('li', { class: 'quiet' }, 'There is no open offer to accept.'),
        rule('CANCEL', app.agent(t.client), 'may cancel.'),
      );
    case 'ACTIVE':
      return h(
        'ul',
        { class: 'next' },
        rule('RESULT', app.agent(t.agent), 'is to deliver.'),
        rule('ERROR', both, 'may end it with an error.'),
        rule('CANCEL', app.agent(t.client), 'may cancel.'),
      );
    case 'COMPLETED':
      return h(
        'ul',
        { class: 'next' },
        h('li', null, 'The work is delivered. Nothing more is expected.'),
        rule('ERROR', both, 'may still report an error.'),
      );
    default:
      return h('ul', { class: 'next' }, h('li', null, 'The thread has ended with an error. No message can move it.'));
  }
}

const NODES = { OPEN: [62, 36], PENDING: [318, 36], ACTIVE: [318, 142], COMPLETED: [62, 142], ERROR: [318, 248] };
const EDGES = [
  ['OPEN', 'PENDING', 'M110 36H263', 'REQUEST', 188, 28],
  ['PENDING', 'PENDING', 'M286 18C280 -4 356 -4 350 13', 'OFFER', 392, 14],
  ['PENDING', 'ACTIVE', 'M318 56V117', 'ACCEPT', 292, 92],
  ['ACTIVE', 'COMPLETED', 'M268 142H123', 'RESULT', 194, 134],
  ['ACTIVE', 'ERROR', 'M318 162V223', 'CANCEL, ERROR', 268, 198],
  ['PENDING', 'ERROR', 'M368 40C424 90 424 200 373 244', '', 0, 0],
  ['COMPLETED', 'ERROR', 'M62 162C70 226 150 248 262 248', 'ERROR', 128, 216],
];

/** Returns a picture of the states. The path that the thread has taken, and its state now, stand out. */
function diagram(t) {
  const taken = new Set(t.transitions.map((x) => `${x.from} ${x.to}`));
  const been = new Set(t.transitions.flatMap((x) => [x.from, x.to]));
  const path = ['OPEN', ...t.transitions.filter((x) => x.from !== x.to).map((x) => x.to)].join(', ');
  return svg(
    'svg',
    {
      viewBox: '0 0 440 276',
      role: 'img',
      class: 'diagram',
      'aria-label': `States so far: ${visible(path, 200)}. Now ${visible(t.state, 20)}.`,
    },
    svg(
      'defs',
      null,
      ['arrow', 'arrow-taken'].map((id) =>
        svg(
          'marker',
          { id, viewBox: '0 0 8 8', refX: 6, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto' },
          svg('path', { d: 'M0 0 8 4 0 8z', class: id }),
        ),
      ),
    ),
    EDGES.map(([from, to, d, label, x, y]) => {
      const is = taken.has(`${from} ${to}`);
      return [
        svg('path', { d, class: is ? 'edge taken' : 'edge', 'marker-end': is ? 'url(#arrow-taken)' : 'url(#arrow)' }),
        label && svg('text', { x, y, class: is ? 'edge-label taken' : 'edge-label' }, label),
      ];
    }),
    Object.entries(NODES).map(([name, [x, y]]) =>
      svg(
        'g',
        { class: `node fill-${name}${name === t.state ? ' now' : been.has(name) ? ' been' : ''}` },
        svg('rect', { x: x - 50, y: y - 19, width: 100, height: 38, rx: 9 }),
        svg('text', { x, y: y + 4.5 }, name),
      ),
    ),
  );
}

/** Returns the words for the agents of a thread, for a page title. */
export const titleOf = (id, client) => `Thread ${visible(id, 40)}${client ? ` of ${shortDID(client)}` : ''}`;
