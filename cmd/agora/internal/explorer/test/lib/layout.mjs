// Whether the page fits into its window.

/** Returns the elements that make the page scroll sideways; none if it does not. */
export const widest = (page) => page.evaluate(() => {
  const { scrollWidth, clientWidth } = document.documentElement;
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
