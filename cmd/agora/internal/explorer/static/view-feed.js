// The live feed: all messages as they arrive, with filters.
import { inspect, mark, threadHref, time, typeBadge } from './parts.js';
import { clockText, isOfClient, number, plural, summary, timeText, TYPES } from './text.js';
import { fillWith, foreign, h, visible } from './dom.js';
import { Feed } from './feed.js';
import { VirtualList } from './vlist.js';

const SERVER_FILTERS = ['type', 'sender', 'recipient', 'thread'];
const PAGES_A_SEARCH = 10; // the most pages that are read when the reader reaches the end of the list

/** Where a message belongs: its thread, or the agent that it announces. */
export function open(m, app) {
  if (m.threadId)
    app.go(
      threadHref(m.threadId, m.thread?.client ?? (isOfClient(m.type) ? m.from : m.to)),
    );
  else if (m.from) app.go(`#/agent/${encodeURIComponent(m.from)}`);
}

/** Returns a row of a list of messages. */
export function row(m, app) {
  const article = h(
    'article',
    { class: 'message', data: { id: visible(m.id, 128), type: m.type, verified: m.status }, 'aria-label': '' },
    h('span', { class: 'm-time' }, time(m.ts, clockText)),
    h('span', { class: 'm-mark' }),
    typeBadge(m.type),
    h(
      'span',
      { class: 'm-who' },
      app.agent(m.from, m.name, { tabindex: '-1' }),
      h('span', { class: 'arrow', 'aria-hidden': 'true' }, '→'),
      app.agent(m.to, '', { tabindex: '-1' }),
    ),
    h('span', { class: 'm-says' }, foreign(summary(m), 300)),
  );
  article.addEventListener('click', (e) => {
    if (!e.target.closest('a,button') && !String(getSelection())) open(m, app);
  });
  update(article, m, app);
  return article;
}

/** Brings the row of a message up to date: its mark, and its text if it was opened since. */
export function update(article, m, app) {
  if (article.dataset.shown === `${m.status}${!!m.opened}`) return;
  article.dataset.shown = `${m.status}${!!m.opened}`;
  article.dataset.verified = m.status;
  const button = mark(m, (m) => inspect(m, app));
  button.tabIndex = -1;
  fillWith(article.querySelector('.m-mark'), button);
  if (m.opened) fillWith(article.querySelector('.m-says'), foreign(summary({ ...m, payload: m.opened }), 300));
  article.setAttribute(
    'aria-label',
    `${m.type} from ${m.name ? visible(m.name, 40) : 'an agent'}, ${timeText(m.ts)}: ${visible(summary(m), 200)}`,
  );
}

const intentOf = (m) => (m.type === 'REQUEST' ? m.payload.intent : m.thread?.intent);

export function feed(app, params, signal) {
  let paused = false;
  let waiting = 0;
  let shown = [];
  let own;
  let ownStop;
  const field = (name, label, props) => {
    const input = h(
      props.options ? 'select' : 'input',
      { id: `feed-x`, autocomplete: 'off', spellcheck: 'false', placeholder: props.placeholder },
      props.options?.map((o) => h('option', { value: o }, o || 'all types')),
    );
    input.id = `filter-${name}`;
    input.value = params.get(name) ?? '';
    input.addEventListener(props.options ? 'change' : 'input', () => {
      clearTimeout(delay);
      delay = setTimeout(refilter, props.options ? 0 : 400);
    });
    return [name, input, h('label', null, h('span', null, label), input)];
  };
  let delay;
  const fields = [
    field('type', 'Type', { options: ['', ...TYPES] }),
    field('intent', 'Intent', { placeholder: 'translation.en_zh' }),
    field('sender', 'From', { placeholder: 'did:key:z6Mk…' }),
    field('recipient', 'To', { placeholder: 'did:key:z6Mk…' }),
    field('thread', 'Thread', { placeholder: 'thread id' }),
  ];
  const pauseButton = h(
    'button',
    { id: 'feed-pause', type: 'button', 'aria-pressed': 'false', onclick: () => setPaused(!paused) },
    'Pause',
  );
  const count = h('span', { class: 'quiet', id: 'feed-count' });
  const note = h('p', { class: 'notice', hidden: true });
  const none = h('div', { class: 'feed-none' });
  const element = h('div', {
    id: 'feed-list',
    class: 'feed-list',
    role: 'feed',
    'aria-label': 'Messages, the newest first',
    tabindex: '0',
  });
  const newer = h('button', {
    type: 'button',
    class: 'newer',
    hidden: true,
    onclick: () => {
      setPaused(false);
      list.toTop();
    },
  });
  const narrow = matchMedia('(max-width: 700px)');
  const list = new VirtualList(element, {
    rowHeight: () => (narrow.matches ? 96 : 44),
    render: (m) => row(m, app),
    update: (r, m) => update(r, m, app),
    open: (m) => open(m, app),
    atEnd: older,
  });
  const view = h(
    'section',
    { class: 'feed' },
    h(
      'div',
      { class: 'feed-head' },
      h('h1', { tabindex: '-1' }, 'Feed'),
      count,
      h('span', { class: 'grow' }),
      pauseButton,
    ),
    h(
      'details',
      { class: 'filters', open: !narrow.matches || fields.some(([, input]) => input.value) },
      h('summary', null, 'Filters'),
      h(
        'form',
        {
          class: 'filter-row',
          onsubmit: (e) => {
            e.preventDefault();
            refilter();
          },
        },
        fields.map(([, , label]) => label),
        h(
          'button',
          {
            type: 'button',
            class: 'small',
            onclick: () => {
              for (const [, input] of fields) input.value = '';
              refilter();
            },
          },
          'Clear',
        ),
      ),
    ),
    note,
    h('div', { class: 'feed-box' }, newer, element, none),
  );

  const current = () => own ?? app.feed;
  const filterNow = () =>
    Object.fromEntries(fields.map(([name, input]) => [name, input.value.trim()]).filter(([, v]) => v));

  function refilter() {
    const all = filterNow();
    const filter = Object.fromEntries(Object.entries(all).filter(([name]) => SERVER_FILTERS.includes(name)));
    app.replace(`#/feed${Object.keys(all).length ? `?${new URLSearchParams(all)}` : ''}`);
    ownStop?.abort();
    own = undefined;
    if (Object.keys(filter).length > 0) {
      // A page holds one poll: while the filtered feed follows, the unfiltered one stops.
      own = new Feed(app.model, app.reader, filter, changed);
      ownStop = new AbortController();
      app.follow(own, AbortSignal.any([ownStop.signal, signal]));
    } else app.follow(app.feed);
    list.toTop();
    setPaused(false);
  }

  function setPaused(to) {
    paused = to;
    pauseButton.textContent = paused ? 'Resume' : 'Pause';
    pauseButton.setAttribute('aria-pressed', String(paused));
    app.connection(paused ? 'paused' : undefined);
    changed();
  }

  function changed() {
    const { intent } = filterNow();
    const all = current().messages;
    const wanted = intent ? all.filter((m) => intentOf(m) === intent) : all;
    if (paused) {
      waiting = wanted.findIndex((m) => m === shown[0]);
      waiting = waiting < 0 ? wanted.length : waiting;
      const tail = shown.length ? wanted.indexOf(shown.at(-1)) : -1; // older messages may still be read
      if (tail >= 0) shown = [...shown, ...wanted.slice(tail + 1)];
    } else [shown, waiting] = [wanted, 0];
    list.set(shown);
    tell();
  }

  function tell() {
    const { note: words, began, hasOlder, isFull } = current();
    fillWith(
      count,
      plural(shown.length, 'message'),
      hasOlder && (isFull ? ', and older ones that this page does not keep' : ' so far'),
    );
    note.hidden = !words;
    note.textContent = visible(words, 300);
    newer.hidden = !(waiting > 0 || list.above > 3);
    newer.textContent = waiting > 0 ? `Show ${number(waiting)} new` : 'Back to the newest';
    none.hidden = shown.length > 0;
    element.setAttribute('role', shown.length > 0 ? 'feed' : 'group'); // a feed must have articles
    const filtered = Object.keys(filterNow()).length > 0;
    fillWith(
      none,
      !began
        ? h('p', { class: 'loading' }, 'Loading')
        : h(
            'p',
            null,
            filtered
              ? 'No message matches these filters.'
              : app.model.about?.reads === 'parties' && !app.model.me
                ? 'This relay shows a directed message to its parties only. Load your key to see yours.'
                : 'No messages yet. New ones appear here as they arrive.',
          ),
    );
  }

  async function older() {
    const feed = current();
    const before = shown.length;
    if (!feed.began || !feed.hasOlder || feed.isFull) return;
    try {
      for (let i = 0; i < PAGES_A_SEARCH && feed.hasOlder && shown.length === before && !signal.aborted; i++)
        await feed.older(signal);
    } catch {
      /* the state of the connection shows it; scrolling tries again */
    }
  }

  element.addEventListener('scroll', tell, { passive: true });
  app.model.addEventListener('checked', list.redraw, { signal });
  narrow.addEventListener('change', () => list.set(shown), { signal });
  signal.addEventListener('abort', () => {
    clearTimeout(delay);
    app.connection(undefined);
    app.follow(app.feed);
  });
  if (fields.some(([name, input]) => input.value && SERVER_FILTERS.includes(name))) refilter();
  return { title: 'Feed', element: view, update: changed };
}
