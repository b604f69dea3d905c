// Ends what a test has started, the last thing first.

const open = new WeakMap(); // for each test, the functions that end things

/** Calls end when the test has ended. */
export function atEnd(t, end) {
  const known = open.get(t);
  if (known) return known.push(end);
  const all = [end];
  open.set(t, all);
  t.after(async () => {
    const errors = [];
    for (const end of all.reverse()) await Promise.resolve().then(end).catch((err) => errors.push(err));
    if (errors.length > 0) throw errors[0];
  });
}
