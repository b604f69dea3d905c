// A list of any length in which only the visible rows are elements. All rows have the same height.
import { eachFrame, h } from './dom.js';

const BEYOND = 8; // rows that exist above and below the visible ones

export class VirtualList {
  #items = [];
  #rows = new Map(); // the rows that exist, by key
  #rowHeight;
  #top = 0; // how far the list is scrolled, and its height: read only when they change, because reading is slow
  #height = 0;
  #active = ''; // the key of the row that has the keyboard's focus
  #spacer = h('div', { class: 'vlist-spacer' });
  #render;
  #update;
  #atEnd;
  redraw = eachFrame(() => this.#draw());

  /**
   * element scrolls. render(item) returns a row, and update(row, item) brings it up to date. atEnd is called when the
   * last rows are visible. An item has a key that no other item has.
   */
  constructor(element, { rowHeight, render, update, atEnd, open }) {
    this.element = element;
    this.#rowHeight = rowHeight;
    this.#render = render;
    this.#update = update;
    this.#atEnd = atEnd;
    element.append(this.#spacer);
    element.addEventListener('scroll', () => this.#scrolled(), { passive: true });
    element.addEventListener('keydown', (e) => this.#key(e, open));
    element.addEventListener('focusin', (e) => {
      this.#active = e.target.closest('[data-key]')?.dataset.key ?? this.#active;
    });
    new ResizeObserver(() => {
      this.#height = element.clientHeight;
      this.redraw();
    }).observe(element);
  }

  #scrolled() {
    this.#top = this.element.scrollTop;
    this.redraw();
  }

  #scrollTo(top) {
    this.element.scrollTop = top;
    this.#top = this.element.scrollTop;
  }

  /** Shows items, the newest first. The rows that the reader looks at stay where they are, except at the top. */
  set(items) {
    const height = this.#rowHeight();
    const first = Math.floor(this.#top / height);
    const anchor = this.#top > height / 2 ? this.#items[first] : undefined;
    this.#items = items;
    this.#spacer.style.height = `${items.length * height}px`;
    if (anchor) {
      const now = items.findIndex((item) => item.key === anchor.key);
      if (now >= 0 && now !== first) this.#scrollTo(this.#top + (now - first) * height);
    }
    this.redraw();
  }

  /** Scrolls to the first row. */
  toTop() {
    this.#scrollTo(0);
    this.redraw();
  }

  /** The number of rows above the visible ones. */
  get above() {
    return Math.floor(this.#top / this.#rowHeight());
  }

  #draw() {
    const height = this.#rowHeight();
    const items = this.#items;
    const from = Math.max(0, Math.floor(this.#top / height) - BEYOND);
    const to = Math.min(items.length, Math.ceil((this.#top + this.#height) / height) + BEYOND);
    this.#spacer.style.height = `${items.length * height}px`;
    const wanted = new Map(items.slice(from, to).map((item, i) => [item.key, [item, from + i]]));
    for (const [key, row] of this.#rows) {
      if (wanted.has(key)) continue;
      const index = row.contains(document.activeElement) ? items.findIndex((item) => item.key === key) : -1;
      if (index >= 0)
        row.style.transform = `translateY(${index * height}px)`; // the focus must not be lost
      else {
        row.remove();
        this.#rows.delete(key);
      }
    }
    let previous = null;
    for (const [key, [item, index]] of wanted) {
      let row = this.#rows.get(key);
      if (!row) {
        row = this.#render(item);
        row.dataset.key = key;
        this.#rows.set(key, row);
      }
      this.#update(row, item);
      row.style.transform = `translateY(${index * height}px)`;
      row.setAttribute('aria-posinset', index + 1);
      row.setAttribute('aria-setsize', items.length);
      row.tabIndex =
        key === this.#active || (!wanted.has(this.#active) && index === Math.ceil(this.#top / height)) ? 0 : -1;
      // Screen readers read rows in the order of the document.
      const place = previous ? previous.nextSibling : this.#spacer.firstChild;
      if (row !== place) this.#spacer.insertBefore(row, place);
      previous = row;
    }
    if (to >= items.length - BEYOND) this.#atEnd?.();
  }

  #key(e, open) {
    if (e.target.closest('[data-key]') !== e.target && !['ArrowDown', 'ArrowUp'].includes(e.key)) return;
    const at = this.#items.findIndex((item) => item.key === this.#active);
    const page = Math.floor(this.#height / this.#rowHeight()) - 1;
    const to = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: this.#items.length - 1,
    }[e.key];
    if (to !== undefined) {
      e.preventDefault();
      this.focus(Math.max(0, Math.min(this.#items.length - 1, to)));
    } else if (e.key === 'Enter' && at >= 0) {
      e.preventDefault();
      open(this.#items[at]);
    }
  }

  /** Moves the keyboard's focus to a row. */
  focus(index) {
    const item = this.#items[index];
    if (!item) return;
    const height = this.#rowHeight();
    const top = index * height;
    if (top < this.#top) this.#scrollTo(top);
    else if (top + height > this.#top + this.#height) this.#scrollTo(top + height - this.#height);
    this.#active = item.key;
    this.#draw();
    this.#rows.get(item.key)?.focus({ preventScroll: true });
  }
}
