// The overview: what this relay is, and what is happening now. The figures come from what the page has read.
import { command, copyMark, empty, facts, relayFlag, stateBadge, threadHref, time } from './parts.js';
import { bytes, number, plural, span, STATES } from './text.js';
import { arrange, atMostEvery, fillWith, foreign, h, svg, toast, visible } from './dom.js';

const MINUTES = 30;
const MAX_FIRST = 1000;
const RECENT = 8;
const AGENTS_EVERY = 30_000;
const REDRAW = 500;

export function overview(app, _params, signal) {
  const { model } = app;
  const head = h('div', { class: 'relay' });
  const tiles = h('div', { class: 'tiles' });
  const chart = h('div', { class: 'card chart' });
  const states = h('div', { class: 'card states' });
  const list = h('ul', { class: 'thread-list' });
  const entries = new WeakMap(); // by thread
  const all = h('p', null, h('a', { href: '#/feed' }, 'All messages'));
  const recent = h('div', { class: 'card recent' }, h('h2', null, 'Latest threads'), list, all);
  const details = h('div', { class: 'card limits', hidden: true });
  const busy = h('div', { class: 'grid' }, chart, states, recent);
  const invite = h('div', { hidden: true });
  const view = h(
    'section',
    null,
    h('h1', { tabindex: '-1', class: 'hidden-text' }, 'Overview'),
    head,
    tiles,
    invite,
    busy,
    details,
  );
  let online;
  let invitedBy; // the relay's document when the invitation was made

  function drawHead() {
    const about = model.about;
    if (!about) return fillWith(head, h('p', { class: 'loading' }, 'Loading'));
    fillWith(
      head,
      h(
        'div',
        { class: 'card' },
        facts(
          ['Address', h('code', null, visible(about.url, 200)), ' ', copyMark(about.url, 'the address')],
          ['Identity', h('code', { class: 'break' }, visible(about.did, 80)), ' ', copyMark(about.did, 'the identity')],
          [
            'Reads',
            about.reads === 'parties'
              ? 'Each message is shown to its sender and its recipient.'
              : 'Every message is public.',
          ],
          [
            'Build',
            visible(about.build ?? '', 80),
            h('span', { class: 'quiet' }, ` protocol ${visible(about.version ?? '', 20)}`),
          ],
        ),
      ),
    );
    details.hidden = false;
    fillWith(details, h('details', null, h('summary', null, h('h2', null, 'Limits and timeouts')), limits(about)));
  }

  function drawNow() {
    const now = model.now();
    const minute = Math.floor(now / 60_000);
    const threads = [...model.threads.values()].map((t) => [t, model.stateOf(t)]);
    const since = (list) => list.filter((m) => m.ts > now - 60_000).length;
    const messages = [...model.messages.values()];
    const { true: good, false: bad, unknown } = model.verified;
    fillWith(
      tiles,
      tile('Messages in the last minute', number(since(messages))),
      tile('Threads opened in the last minute', number(since(messages.filter((m) => m.type === 'REQUEST')))),
      tile('Agents online', online === undefined ? '…' : online),
      tile(
        'Verified in this browser',
        bad > 0 ? `${number(bad)} failed` : unknown > 0 ? 'not checkable' : number(good),
        bad > 0 ? 'bad' : good > 0 && unknown === 0 ? 'good' : '',
        bad > 0
          ? `of ${number(good + bad)}`
          : unknown > 0
            ? 'this page has no secure context'
            : `of ${plural(model.messages.size, 'message')}`,
      ),
    );
    fillWith(
      chart,
      h('h2', null, 'Messages a minute'),
      bars(model.minutes, minute, app.feed.hasOlder ? coverage() : 0),
    );
    fillWith(states, h('h2', null, 'Threads'), share(threads.map(([, s]) => s.state)));
    const latest = threads.sort((a, b) => b[1].last - a[1].last).slice(0, RECENT);
    arrange(
      list,
      latest.map(([t, s]) => entry(t, s)),
    );
    const nothing = app.feed.began && model.messages.size === 0;
    busy.hidden = nothing || !app.feed.began;
    invite.hidden = !nothing;
    if (nothing && invitedBy !== model.about) {
      invitedBy = model.about;
      fillWith(invite, welcome());
    }
  }

  // Returns the entry of a thread, with a new text if there is news.
  function entry(t, s) {
    const known = entries.get(t) ?? h('li', null, h('a', { href: threadHref(t.id, t.client) }));
    entries.set(t, known);
    const version = `${s.state} ${t.messages.length} ${s.last}`;
    if (known.dataset.version === version) return known;
    Object.assign(known.dataset, { thread: visible(t.id, 128), state: s.state, version });
    fillWith(
      known.firstChild,
      h(
        'span',
        { class: 'what' },
        s.intent ? foreign(s.intent, 60) : h('code', null, visible(t.id, 40)),
        s.title && h('span', { class: 'quiet' }, foreign(s.title, 80)),
      ),
      h('span', { class: 'quiet' }, plural(t.messages.length, 'message')),
      time(s.last),
      stateBadge(s.state),
    );
    return known;
  }

  // The time from which on the page has read everything, in ms.
  const coverage = () => app.feed.messages.at(-1)?.ts ?? 0;

  function welcome() {
    if (model.about?.reads === 'parties' && !model.me) {
      return empty(
        'Nothing that everybody may see',
        h(
          'p',
          null,
          'This relay shows a directed message to its sender and its recipient only. ' +
            'Load your key to see your messages.',
        ),
        h('button', { type: 'button', onclick: app.askForKey }, 'Load your key'),
      );
    }
    const at = relayFlag(app.address);
    const maySeed = model.about?.features?.includes('seed');
    const button =
      maySeed && h('button', { type: 'button', id: 'seed', class: 'primary', onclick: seed }, 'Seed demo data');
    return empty(
      'No messages yet',
      h('p', null, 'This relay is ready. Try it from a shell:'),
      command('agora keygen alice.key', '1. Create an identity'),
      command(
        `agora send request${at} --key alice.key --intent echo --params '{"text":"Hello"}'`,
        '2. Ask for a service',
      ),
      command(`agora follow${at} --key alice.key`, '3. Watch what agents answer'),
      maySeed && h('p', { class: 'or' }, 'Or look at three finished conversations: ', button),
    );
  }

  async function seed() {
    this.disabled = true;
    try {
      const { count } = await app.post('/seed', signal);
      toast(`${plural(count, 'message')} posted`);
      countAgents();
    } catch (err) {
      toast(visible(err.message, 200));
      this.disabled = false;
    }
  }

  async function countAgents() {
    if (document.hidden) return;
    try {
      const page = await app.reader.get('/agents', { online: 'true', limit: 1000 }, signal);
      online = `${number(new Set(page.agents.map((a) => a.id)).size)}${page.hasMore ? '+' : ''}`;
    } catch {
      return;
    } // the state of the connection shows it
    draw();
  }

  // Reads so many older messages that the chart is full.
  async function fill() {
    while (app.feed.hasOlder && model.messages.size < MAX_FIRST && coverage() > model.now() - MINUTES * 60_000)
      await app.feed.older(signal);
  }

  function draw() {
    if (signal.aborted) return;
    if (!drawn || drawn !== model.about) {
      drawn = model.about;
      drawHead();
    }
    drawNow();
  }
  let drawn;
  const drawSoon = atMostEvery(REDRAW, draw, signal);
  const timers = [setInterval(draw, 5000), setInterval(countAgents, AGENTS_EVERY)];
  signal.addEventListener('abort', () => timers.forEach(clearInterval));
  countAgents();
  const filling = setInterval(() => {
    if (!app.feed.began) return;
    clearInterval(filling);
    fill().catch(() => {}); // the state of the connection shows it
  }, 300);
  timers.push(filling);
  draw();
  return { title: 'Overview', element: view, update: drawSoon };
}

const tile = (label, value, mood = '', more = '') =>
  h(
    'div',
    { class: 'tile', data: { mood } },
    h('span', { class: 'tile-label' }, label),
    h('span', { class: 'tile-value' }, value),
    more && h('span', { class: 'quiet' }, more),
  );

/** Returns a bar chart of the last minutes. Before `from` (ms) the page has not read everything. */
function bars(minutes, last, from) {
  const width = 10;
  const height = 90;
  const all = [];
  for (let i = MINUTES - 1; i >= 0; i--)
    all.push({ at: last - i, ...(minutes.get(last - i) ?? { messages: 0, threads: 0 }) });
  const peak = Math.max(4, ...all.map((m) => m.messages));
  const scale = (n) => (n / peak) * (height - 6);
  const total = all.reduce((sum, m) => sum + m.messages, 0);
  const most = number(Math.max(...all.map((m) => m.messages)));
  const words =
    `${plural(total, 'message')} in the last ${MINUTES} minutes. At most ${most} in one minute. ` +
    `${number(all.at(-1).messages)} in this minute.`;
  const bar = (m, i, n, name) =>
    n > 0 &&
    svg('rect', { x: i * width + 1.5, width: width - 3, y: height - scale(n), height: scale(n), rx: 1.5, class: name });
  return [
    svg(
      'svg',
      {
        viewBox: `0 0 ${MINUTES * width} ${height + 2}`,
        role: 'img',
        'aria-label': words,
        preserveAspectRatio: 'none',
      },
      [0.5, 1].map((f) =>
        svg('line', {
          x1: 0,
          x2: MINUTES * width,
          y1: height - scale(peak * f),
          y2: height - scale(peak * f),
          class: 'gridline',
        }),
      ),
      all.map((m, i) => [
        (m.at + 1) * 60_000 <= from && svg('rect', { x: i * width, width, y: 0, height, class: 'unread' }),
        bar(m, i, m.messages, 'bar'),
        bar(m, i, m.threads, 'bar-threads'),
      ]),
      svg('line', { x1: 0, x2: MINUTES * width, y1: height + 0.5, y2: height + 0.5, class: 'axis' }),
    ),
    h(
      'div',
      { class: 'chart-legend' },
      h('span', null, `${MINUTES} min ago`),
      h('span', { class: 'key-bar' }, 'messages'),
      h('span', { class: 'key-threads' }, 'new threads'),
      from > 0 && h('span', { class: 'key-unread' }, 'not read'),
      h('span', null, `peak ${most}`),
      h('span', null, 'now'),
    ),
  ];
}

/** Returns how many threads are in which state, as a bar and a list. */
function share(list) {
  const counts = STATES.map((state) => [state, list.filter((s) => s === state).length]);
  let x = 0;
  return [
    svg(
      'svg',
      { viewBox: '0 0 100 4', preserveAspectRatio: 'none', class: 'share', 'aria-hidden': 'true' },
      counts.map(([state, n]) => {
        const width = list.length ? (n / list.length) * 100 : 0;
        const rect = svg('rect', { x, width, y: 0, height: 4, class: `fill-${state}` });
        x += width;
        return n > 0 && rect;
      }),
    ),
    h(
      'ul',
      { class: 'state-counts' },
      counts.map(([state, n]) => h('li', null, stateBadge(state), h('b', null, number(n)))),
    ),
    h('p', { class: 'quiet' }, `Of the ${plural(list.length, 'thread')} that this page has read.`),
  ];
}

const WORDS = {
  bodyBytes: ['Size of a message', bytes],
  depth: ['Nesting of a message', number],
  hop: ['Hops', number],
  costlyNumbers: ['Costly numbers in a message', number],
  pageEvents: ['Messages in an answer', number],
  pageBytes: ['Size of an answer', bytes],
  offersPerThread: ['Offers to a thread', number],
  manifestsPerAgent: ['Manifests of an agent', number],
  connectionsPerAddress: ['Connections of an address', number],
  requestsPerAddress: ['Concurrent requests of an address', number],
  pollsPerAddress: ['Waiting polls of an address', number],
  polls: ['Waiting polls', number],
  writesPerAddress: ['Messages of an address that are being stored', number],
  bulks: ['Concurrent bulk requests of an address', number],
  bulkLines: ['Messages in a bulk request', number],
  bulkBytes: ['Size of a bulk request', bytes],
  inboxEvents: ['Messages in an inbox', number],
  inboxBytes: ['Size of an inbox', bytes],
  skew: ['Difference of clocks', span],
  idMemory: ['An id is remembered for', span],
  defaultTtl: ['Life of a message without ttl', span],
  maxTtl: ['Longest life of a message', span],
  pendingTimeout: ['Wait for an ACCEPT', span],
  activeTimeout: ['Wait for a RESULT', span],
  threadRetention: ['A record is kept for', span],
  pollDefault: ['Wait of a poll', span],
  pollMax: ['Longest wait of a poll', span],
  streamMax: ['Longest stream', span],
  postsPerAddress: ['Posts of an address'],
  readsPerAddress: ['Reads of an address'],
  postsPerAgent: ['Messages of an agent'],
  broadcastsPerAddress: ['Broadcast requests of an address'],
  newConnectionsPerAddress: ['New connections of an address'],
};

function limits(about) {
  const rows = (object, format) =>
    Object.entries(object ?? {})
      .filter(([, v]) => typeof v !== 'object' || format)
      .map(([name, value]) => [
        WORDS[name]?.[0] ?? visible(name, 40),
        format ? format(value) : (WORDS[name]?.[1]?.(value) ?? visible(value, 40)),
      ]);
  const rate = (r) => `${number(r?.perSecond)} a second, ${number(r?.burst)} at once`;
  return h(
    'div',
    { class: 'columns' },
    h('div', null, h('h3', null, 'Times'), facts(...rows(about.seconds))),
    h('div', null, h('h3', null, 'Sizes and numbers'), facts(...rows(about.limits))),
    h(
      'div',
      null,
      h('h3', null, 'Rates'),
      facts(...rows(about.limits?.rates, rate)),
      !about.limits?.rates && h('p', { class: 'quiet' }, 'Rates are not limited.'),
      h('h3', null, 'Features'),
      h(
        'p',
        null,
        (about.features ?? []).map((f) => [h('code', null, visible(f, 40)), ' ']),
      ),
    ),
  );
}
