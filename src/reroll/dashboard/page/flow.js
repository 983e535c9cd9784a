// The ledger as a flow: from what was put, over the place where it is or how it left, to trained or not.

import { count } from "./dom.js";

const TONES = {
  resident: "accent", leased: "third", out: "init", uncommitted: "third", consumed: "completed", expired: "expired",
  evicted: "aborted", filtered: "filtered", failed: "failed", deleted: "filtered", lost: "red",
};
const BAR = 10, GAP = 12, LINE = 15, MARGIN = 8;

const sum = (values) => values.reduce((total, value) => total + value, 0);

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const seen = new Set(); // a bucket that held something once keeps its place, so that nothing jumps

/** What the buckets of some tasks hold together, those left out that never held anything. */
function bucketsOf(parts, unit) {
  const column = unit === "tokens" ? 1 : 0;
  const all = (name, index) => sum(parts.map((part) => part[name][index]));
  return Object.keys(TONES)
    .map((name) => ({ name, tone: TONES[name], amount: all(name, column), trained: all(name, column + 2) }))
    .filter(({ name, amount }) => (amount > 0 ? seen.add(name) : seen.has(name)));
}

export function drawFlow(holder, books, task, unit) {
  const buckets = bucketsOf(task ? [books[task]].filter(Boolean) : Object.values(books), unit);
  const put = sum(buckets.map(({ amount }) => amount));
  if (!put) {
    holder.dataset.empty = "Nothing was put yet.";
    holder.replaceChildren();
    return;
  }
  delete holder.dataset.empty;
  const width = holder.clientWidth, isNarrow = width < 560;
  const line = isNarrow ? 2 * LINE : LINE;
  const height = Math.max(230, MARGIN * 2 + buckets.length * (line + GAP) + 60);
  const trained = sum(buckets.map((bucket) => bucket.trained));
  const columns = [
    [{ name: "put", tone: "muted", amount: put }],
    buckets,
    [{ name: "trained", tone: "completed", amount: trained }, { name: "not trained", tone: "second", amount: put - trained }].filter(({ amount }) => amount > 0),
  ];
  const scale = Math.min(...columns.map((column) => scaleOf(column, height - 2 * MARGIN - GAP * (column.length - 1), line)));
  const left = isNarrow ? [0, width * 0.36, width - 95] : [0, width * 0.42, width - 150];
  columns.forEach((column, index) => place(column, left[index], height, scale, line));
  const [[whole], , ends] = columns, ribbons = [];
  for (const bucket of buckets) {
    if (bucket.amount) ribbons.push(ribbon(whole, bucket, bucket.amount, scale, bucket));
    for (const end of ends) {
      const amount = end.name === "trained" ? bucket.trained : bucket.amount - bucket.trained;
      if (amount) ribbons.push(ribbon(bucket, end, amount, scale, bucket));
    }
  }
  holder.style.height = `${height}px`;
  holder.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Ledger" },
    ...ribbons, ...columns.flat().flatMap((node) => mark(node, unit, put, isNarrow))));
}

/** How tall one group or token may be, so that a column fits, in which a thin node takes as much as its words. */
function scaleOf(column, room, line) {
  const amounts = column.map(({ amount }) => amount).sort((a, b) => a - b);
  let left = room, rest = sum(amounts);
  for (const amount of amounts) {
    if ((amount * left) / rest >= line) break;
    left -= line;
    rest -= amount;
  }
  return rest > 0 ? left / rest : 0;
}

/** Stand nodes below each other, in the middle. */
function place(column, left, height, scale, line) {
  const tall = column.map(({ amount }) => amount * scale);
  const room = sum(tall.map((size) => Math.max(size, line))) + GAP * (column.length - 1);
  let top = Math.max(MARGIN, (height - room) / 2);
  column.forEach((node, index) => {
    const slot = Math.max(tall[index], line);
    Object.assign(node, { left, top: top + (slot - tall[index]) / 2, height: tall[index], given: 0, taken: 0 });
    top += slot + GAP;
  });
}

function ribbon(from, to, amount, scale, bucket) {
  const size = amount * scale, x0 = from.left + BAR, x1 = to.left, middle = (x0 + x1) / 2;
  const y0 = from.top + from.given, y1 = to.top + to.taken;
  from.given += size;
  to.taken += size;
  const path = `M${x0},${y0} C${middle},${y0} ${middle},${y1} ${x1},${y1} v${size} C${middle},${y1 + size} ${middle},${y0 + size} ${x0},${y0 + size} Z`;
  return svg("path", { d: path, class: "ribbon-of", fill: `var(--${bucket.tone})` }, svg("title", {}, `${from.name} → ${to.name}: ${count(amount)}`));
}

function mark(node, unit, put, isNarrow) {
  const about = `${node.name}: ${node.amount.toLocaleString("en")} ${unit}, ${((100 * node.amount) / put).toFixed(1)} %`;
  const x = node.left + BAR + 7, middle = node.top + node.height / 2;
  const amount = svg("tspan", isNarrow ? { class: "amount", x, dy: LINE } : { class: "amount", dx: 6 }, count(node.amount));
  const text = svg("text", { x, y: middle - (isNarrow ? LINE / 2 : 0), "dominant-baseline": "central" }, node.name, amount);
  return [svg("rect", { x: node.left, y: node.top, width: BAR, height: Math.max(node.height, 1.5), rx: 2, fill: `var(--${node.tone})` }, svg("title", {}, about)), text];
}
