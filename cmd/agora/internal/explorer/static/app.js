// The page of a relay. It reads only the relay's public API and checks each signature in this browser.
import * as agora from './agora.js';
import { agents, oneAgent } from './view-agents.js';
import { api } from './view-api.js';
import { feed } from './view-feed.js';
import { overview } from './view-overview.js';
import { thread } from './view-thread.js';
import { verify } from './view-verify.js';
import { Feed, Reader } from './feed.js';
import { hasLog, watchLog } from './log.js';
import { Model } from './model.js';
import { agent, command } from './parts.js';
import { proofPanel } from './proof-panel.js';
import { fillWith, h, toast, visible } from './dom.js';
import { quoted, shortDID } from './text.js';

const CONNECTION = {
  live: 'Live',
  waiting: 'Connecting',
  lost: 'No connection',
  limited: 'Slowed down',
  paused: 'Paused',
};
const CLOCK_EVERY = 10 * 60_000;
const MAX_KEY_FILE = 64 << 10;
const $ = (id) => document.getElementById(id);

// The views by the first part of the address, and the tab that is marked. A view is a function of the app, the
// parameters, the signal that ends it, and the rest of the address.
const ROUTES = new Map([
  ['', { view: overview, tab: 'overview' }],
  ['feed', { view: feed, tab: 'feed' }],
  ['thread', { view: thread, tab: 'feed' }],
  ['agents', { view: agents, tab: 'agents' }],
  ['agent', { view: oneAgent, tab: 'agents' }],
  ['verify', { view: verify, tab: 'verify' }],
  ['api', { view: api, tab: 'api' }],
]);

// The origin of the relay, if the page is files of agora page --out: that in the address of the page, or else that of
// the files. It is '' if neither names one, and undefined if the page comes from a relay or from agora page.
function namedRelay() {
  const files = document.querySelector('meta[name=agora-files]');
  return files ? originOf(new URLSearchParams(location.search).get('relay') ?? files.content) : undefined;
}

// The origin of a URL that a person has typed; '': it is none.
function originOf(text) {
  const full = /^\s*https?:/i.test(text) ? text : `https://${text}`;
  if (!URL.canParse(full)) return '';
  const { hostname, origin } = new URL(full);
  return /^[\w.:[\]-]+$/.test(hostname) ? origin : ''; // some browsers take any text as a name
}

// The view of a page of files that does not know its relay yet.
function choice() {
  const title = 'Which relay?';
  const url = h('input', { id: 'relay-url', placeholder: 'https://relay.example', spellcheck: 'false' });
  const problem = h('p', { role: 'alert', class: 'notice', hidden: true }, 'Write a URL such as https://relay.example');
  const show = (e) => {
    e.preventDefault();
    const relay = originOf(url.value);
    problem.hidden = relay !== '';
    if (relay) location.search = new URLSearchParams({ relay });
  };
  const label = h('label', { class: 'file' }, h('span', null, 'The URL of a relay'), url);
  const button = h('button', { type: 'submit', class: 'primary' }, 'Show it');
  const form = h('form', { class: 'card choice', onsubmit: show }, label, button, problem);
  return { title, element: h('section', null, h('h1', { tabindex: '-1' }, title), form) };
}

function nothing() {
  const title = 'There is nothing at this address';
  const link = h('p', null, h('a', { href: '#/' }, 'To the overview'));
  return { title, element: h('section', null, h('h1', { tabindex: '-1' }, title), link) };
}

class App {
  model = new Model();
  pasted; // what the reader searched for, on the way to the view that finds it
  base = namedRelay() ?? location.origin; // where the page reads
  address = this.base; // where others reach the relay, once configured is done
  configured; // a promise
  #page; // the view that is shown
  #stop = new AbortController(); // ends the view
  #following; // { feed, stop, done }: the feed that follows the relay, what ends it, and the promise of its end
  #state = 'waiting';
  #shownState;
  #config = {};

  constructor() {
    this.askForKey = this.askForKey.bind(this);
    this.reader = new Reader(this.#relay(), (state, text) => this.#report(state, text));
    this.feed = new Feed(this.model, this.reader, {}, () => this.#page?.update?.());
    this.model.addEventListener('change', () => this.#page?.update?.());
    addEventListener('hashchange', () => this.route());
    addEventListener('keydown', (e) => this.#key(e));
    $('search-form').addEventListener('submit', (e) => {
      e.preventDefault();
      this.search($('search').value);
    });
    $('search').addEventListener('paste', (e) => this.#paste(e));
    $('key-button').addEventListener('click', this.askForKey);
    $('theme').addEventListener('click', () => this.#switchTheme());
    if (this.base) $('host').textContent = new URL(this.base).host;
  }

  /** Whether the page is files of agora page --out, which read from a relay at another origin. */
  get isFiles() {
    return namedRelay() !== undefined;
  }

  /** Whether keys may be loaded: only if the page comes from the reader's own machine. */
  get isOwn() {
    return ['localhost', '127.0.0.1', '[::1]'].includes(location.hostname);
  }

  async start() {
    if (!this.base) {
      for (const id of ['connection', 'key-button']) $(id).hidden = true;
      return this.route();
    }
    this.configured = this.#configure();
    this.route();
    this.follow(this.feed);
    await this.configured;
    await this.#learn();
    setInterval(() => this.#learn(), CLOCK_EVERY);
  }

  // Reads for which relay this page is.
  async #configure() {
    if (this.isFiles) return;
    try {
      this.#config = await (await fetch('page/config.json')).json();
    } catch {
      /* the relay does not answer; the feed shows that */
    }
    if (this.#config.relay) {
      this.address = this.#config.relay;
      $('host').textContent = new URL(this.address).host;
      this.reader.relay = this.#relay();
    }
  }

  // The relay as the reader's key sees it. Reads are signed for the relay that "agora page" names, or for the relay of
  // this machine under the address that it has for others.
  #relay() {
    const origin = this.#config.relay ?? (this.isOwn && !this.isFiles ? this.model.about?.url : undefined);
    return new agora.Relay(this.base || location.origin, { me: this.model.me, origin });
  }

  // Reads what the relay says of itself, and its clock.
  async #learn() {
    for (let wait = 1000; ; wait = Math.min(30_000, wait * 2)) {
      try {
        const [about, health] = await Promise.all([
          this.reader.get('/.well-known/agora.json'),
          this.reader.get('/health'),
        ]);
        this.model.about = about;
        this.model.clockOffset = Date.parse(health.now) - Date.now();
        const isLocal = this.isOwn && !this.isFiles && !this.#config.relay;
        if (isLocal && typeof about.url === 'string') this.address = about.url;
        this.model.change();
        document.documentElement.toggleAttribute('data-proofs', hasLog(about));
        await watchLog(about, this.reader, $('log-warning'));
        return;
      } catch {
        await new Promise((resume) => setTimeout(resume, wait));
      }
    }
  }

  /** Makes a feed follow the relay until the signal is aborted, and ends the one before: a page holds one poll. */
  follow(followed, signal) {
    const before = this.#following;
    if (before?.feed === followed) return;
    before?.stop.abort();
    const stop = new AbortController();
    const ends = signal ? AbortSignal.any([stop.signal, signal]) : stop.signal;
    const done = Promise.resolve(before?.done).then(() => followed.run(ends));
    this.#following = { feed: followed, stop, done };
  }

  /** Posts to a path of the relay without a body. */
  async post(path, signal) {
    const response = await fetch(this.base + path, { method: 'POST', signal });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.message);
    return answer;
  }

  /** Returns a link to an agent. name is the one that a message has; else it is that of the agent's manifest. */
  agent(did, name, props) {
    return agent(did, name || this.model.names.get(did), props);
  }

  /** Returns the panel with the relay's proof of a message. It is hidden unless the relay keeps a log. */
  proof(m) {
    return proofPanel(m, this);
  }

  // --- Routes

  go(hash) {
    location.hash = hash;
  }

  /** Changes the address without a new view. */
  replace(hash) {
    history.replaceState(null, '', hash);
  }

  route() {
    const [path, query = ''] = (location.hash || '#/').slice(1).split('?');
    const params = new URLSearchParams(query);
    const [, name = '', ...rest] = path.split('/');
    let argument = '';
    try {
      argument = decodeURIComponent(rest.join('/'));
    } catch {
      /* the address is malformed; the view says that there is no such thing */
    }
    this.#stop.abort();
    this.#stop = new AbortController();
    const { signal } = this.#stop;
    const first = !this.#page;
    this.#page = undefined;
    const route = this.base ? (ROUTES.get(name) ?? { view: nothing }) : { view: choice };
    this.#page = route.view(this, params, signal, argument);
    fillWith($('main'), this.#page.element);
    document.title = `${this.#page.title} · Agora relay`;
    for (const link of document.querySelectorAll('[data-tab]')) {
      if (link.dataset.tab === route.tab) link.setAttribute('aria-current', 'page');
      else link.removeAttribute('aria-current');
    }
    this.#page.update?.();
    if (first) return;
    scrollTo(0, 0);
    $('main').querySelector('h1')?.focus({ preventScroll: true });
  }

  // --- Search

  search(text) {
    text = text.trim();
    if (!text) return;
    $('search').blur();
    if (this.#page?.search) return this.#page.search(text);
    this.pasted = text;
    this.go('#/verify');
  }

  // A pasted envelope may have several lines, which the search field would join.
  #paste(e) {
    const text = e.clipboardData?.getData('text') ?? '';
    if (!text.trim().startsWith('{')) return;
    e.preventDefault();
    $('search').value = '';
    this.search(text);
  }

  #key(e) {
    const typing = e.target.closest?.('input,textarea,select,[contenteditable]');
    if (e.key === '/' && !typing && !e.ctrlKey && !e.metaKey && !e.altKey && !document.querySelector('dialog[open]')) {
      e.preventDefault();
      $('search').focus();
      $('search').select();
    } else if (e.key === 'Escape' && typing === $('search')) {
      $('search').value = '';
      $('search').blur();
    }
  }

  // --- Connection

  /** Shows a state of the connection instead of the real one, or the real one again. */
  connection(state) {
    this.#shownState = state;
    this.#tell(CONNECTION[state ?? this.#state]);
  }

  #report(state, text) {
    if (this.#state === 'lost' && state === 'live') this.#learn();
    this.#state = state;
    this.#tell(text ?? CONNECTION[state]);
    if (this.isFiles) this.#explainSilence(state === 'lost');
  }

  // A browser does not tell a page why a relay at another origin does not answer.
  #explainSilence(isLost) {
    const element = $('no-answer');
    if (element.hidden !== isLost) return;
    element.hidden = !isLost;
    const isMixed = location.protocol === 'https:' && this.base.startsWith('http:');
    fillWith(
      element,
      h('p', null, `${this.base} does not answer. Perhaps it does not run, or its operator must allow this page:`),
      command(`agora serve --cors-origin ${quoted(location.origin)}`),
      isMixed && h('p', null, 'A page that came over https can read only from relays with https.'),
      h('p', null, h('a', { href: '?relay=' }, 'Choose another relay')),
    );
  }

  #tell(text) {
    const element = $('connection');
    const state = this.#shownState ?? this.#state;
    element.dataset.state = state;
    const words = this.#shownState ? CONNECTION[state] : text;
    if (element.lastElementChild.textContent !== words) element.lastElementChild.textContent = words;
  }

  // --- Keys

  askForKey() {
    const dialog = h('dialog', { class: 'key-dialog', 'aria-labelledby': 'key-title' });
    const problem = h('p', { role: 'alert', class: 'notice', hidden: true });
    const close = h('button', { type: 'button', class: 'small', onclick: () => dialog.close() }, 'Close');
    const load = async (e) => {
      const [file] = e.target.files;
      try {
        if (file.size > MAX_KEY_FILE) throw new Error('This file is too large for a key file.');
        this.#setKey(await agora.readKeyFile(await file.text()));
        dialog.close();
        toast('Key loaded');
      } catch (err) {
        problem.hidden = false;
        problem.textContent = visible(err.message, 300);
      }
    };
    const { me } = this.model;
    dialog.append(
      h('header', { role: 'none' }, h('h2', { id: 'key-title' }, 'Your key'), close),
      !this.isOwn
        ? h(
            'div',
            null,
            h(
              'p',
              null,
              'Others serve this page. A key is loaded only into a page from your own machine, so that nobody else ' +
                'can take it. Run this, and load your key there:',
            ),
            command(`agora page ${quoted(this.base || location.origin)}`),
          )
        : me
          ? h(
              'div',
              null,
              h('p', null, 'You read as ', h('code', { class: 'break' }, me.did), '.'),
              h(
                'button',
                {
                  type: 'button',
                  onclick: () => {
                    this.#setKey(undefined);
                    dialog.close();
                  },
                },
                'Forget the key',
              ),
            )
          : h(
              'div',
              null,
              h(
                'p',
                null,
                'With a key file of agora keygen, this page opens what is sealed to you, and signs its reads where a ' +
                  'relay shows messages to their parties only. The key stays in the memory of this page. It is never ' +
                  'sent or stored.',
              ),
              h(
                'label',
                { class: 'file' },
                h('span', null, 'Key file'),
                h('input', { type: 'file', id: 'key-file', onchange: load }),
              ),
              problem,
            ),
    );
    dialog.addEventListener('close', () => dialog.remove());
    dialog.addEventListener('click', (e) => {
      if (e.target === dialog) dialog.close();
    });
    document.body.append(dialog);
    dialog.showModal();
  }

  #setKey(me) {
    this.#following.stop.abort();
    this.#following.feed = undefined; // so that the feed begins again
    this.feed.clear();
    this.model.setKey(me);
    this.reader.relay = this.#relay();
    const button = $('key-button');
    button.dataset.loaded = String(!!me);
    button.title = me ? `You read as ${shortDID(me.did)}` : '';
    button.querySelector('.hidden-text').textContent = me ? `Your key: ${shortDID(me.did)}` : 'Your key';
    this.follow(this.feed);
    this.route();
  }

  // --- Colours

  #switchTheme() {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === 'dark'
      : matchMedia('(prefers-color-scheme: dark)').matches;
    setTheme(dark ? 'light' : 'dark');
    try {
      localStorage.setItem('agora-theme', dark ? 'light' : 'dark');
    } catch {
      /* the browser stores nothing */
    }
  }
}

function setTheme(name) {
  if (name === 'dark' || name === 'light') document.documentElement.dataset.theme = name;
}

try {
  setTheme(localStorage.getItem('agora-theme'));
} catch {
  /* the browser stores nothing */
}
new App().start();
