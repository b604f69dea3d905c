// Prints what the A2A SDK for JavaScript verifies of cards: all without what is empty, with sorted names.
// Input: cards, one a line.
import { readFileSync } from "node:fs";

function clean(value) {
  if (value === "" || value === null) return null;
  if (Array.isArray(value)) {
    const list = value.map(clean).filter((v) => v !== null);
    return list.length > 0 ? list : null;
  }
  if (typeof value !== "object") return value;
  const members = Object.entries(value).map(([name, v]) => [name, clean(v)]).filter(([, v]) => v !== null);
  return members.length > 0 ? Object.fromEntries(members) : null;
}

function canonical(value) {
  if (typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  return `{${Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

const lines = readFileSync(0, "utf8").split("\n");
process.stdout.write(lines.map((line) => {
  const { signatures, ...card } = JSON.parse(line);
  return canonical(clean(card));
}).join("\n"));
