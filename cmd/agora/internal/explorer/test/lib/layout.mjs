// Whether the page fits into its window.

/** Returns what is wrong, as texts: the head ends before the edge of the window, or the dialog or the page is so
 *  wide that it scrolls sideways. Returns an empty list if the page fits. */
export const widest = (page) => page.evaluate(() => {
  const { scrollWidth, clientWidth } = document.documentElement;
  const head = document.querySelector('.top').getBoundingClientRect().right, dialog = document.querySelector('dialog');
  if (head < innerWidth) return [`the head ends at ${head} px in a window of ${innerWidth}`];
  if (dialog?.scrollWidth > dialog?.clientWidth) return [`the dialog has ${dialog.scrollWidth} px in ${dialog.clientWidth}`];
  if (scrollWidth <= clientWidth) return [];
  const overflows = (e) => getComputedStyle(e).overflowX === 'visible';
  const contained = (e) => {
    for (let p = e.parentElement; p && p !== document.body; p = p.parentElement) {
      if (!overflows(p)) return true;
    }
    return false;
  };
  const width = (e) => Math.max(e.getBoundingClientRect().width, overflows(e) ? e.scrollWidth : 0);
  const end = (e) => e.getBoundingClientRect().left + width(e);
  const wide = [...document.body.querySelectorAll('*')].filter((e) => end(e) > clientWidth + 1 && !contained(e));
  const inner = wide.filter((e) => !wide.some((other) => other !== e && e.contains(other)));
  const name = (e) => `${e.tagName}.${e.className?.baseVal ?? e.className}`;
  const names = inner.slice(0, 3).map((e) => `${name(e.parentElement)} > ${name(e)}`).join('; ');
  return [`the page is ${scrollWidth} px wide in a window of ${clientWidth}: ${names}`];
});
