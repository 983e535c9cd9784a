// The figure of each chart, from the history and the newest frame.

import { bytes, count, decimal } from "./dom.js";
import { colour, label, nth } from "./charts.js";

const STACKED = ["completed", "aborted", "expired", "init", "archived"];
const SET_ASIDE = { filtered: "dot", failed: "dash" }; // kept to be looked at: lines on an axis of their own, so that they hide nothing
const PATTERNS = { aborted: ".", expired: "/", archived: "-" }; // statuses differ by more than colour
const RATE_OVER_S = 10; // seconds that a rate averages over

const times = (points) => points.map((point) => new Date(point.at * 1000));
const sum = (values) => values.reduce((total, value) => total + value, 0);
const tasksOf = (points) => [...new Set(points.flatMap((point) => Object.keys(point.tasks)))];
const of = (point, task) => (task ? (point.tasks[task] ? [point.tasks[task]] : []) : Object.values(point.tasks));

// --- over time

const CLOCK = { type: "date", tickformat: "%H:%M:%S", nticks: 6 };

const inStatus = (task, status) => (point) => sum(of(point, task).map((part) => part.statuses[status] ?? 0));

export function occupancy(points, task, by) {
  const series = by === "task" && !task
    ? tasksOf(points).map((name, index) => [name, nth(index, 0.75), (point) => sum(STACKED.map((status) => point.tasks[name]?.statuses[status] ?? 0))])
    : STACKED.map((status) => [status, colour(status, 0.75), inStatus(task, status)]);
  const x = times(points);
  const traces = series.map(([name, fillcolor, value]) => ({
    type: "scatter", mode: "lines", x, y: points.map(value), name: label(name), stackgroup: "all", fillcolor, line: { width: 0 },
    hovertemplate: "%{y:,d}", ...(by === "task" ? {} : { fillpattern: { shape: PATTERNS[name] ?? "", fillmode: "overlay", size: 6, solidity: 0.25 } }),
  }));
  const aside = Object.entries(SET_ASIDE).map(([status, dash]) => ({
    type: "scatter", mode: "lines", x, y: points.map(inStatus(task, status)), name: `${status} (right)`, yaxis: "y2",
    line: { width: 2, color: colour(status), dash }, hovertemplate: "%{y:,d}",
  }));
  const some = (trace) => trace.y.some(Boolean);
  return {
    traces: [...traces, ...(by === "task" && !task ? [] : aside)].filter(some), hovermode: "x unified", xaxis: CLOCK,
    yaxis2: { overlaying: "y", side: "right", showgrid: false, rangemode: "tozero", nticks: 4, tickformat: "~s" },
  };
}

/** The change of a counter per second, at each point. */
export function rate(points, counter) {
  let first = 0;
  return points.map((point, index) => {
    while (first < index - 1 && points[first + 1].at <= point.at - RATE_OVER_S) first++;
    const change = counter(point) - counter(points[first]), passed = point.at - points[first].at;
    return passed > 0 && change >= 0 ? change / passed : null; // counters go back when a buffer is rewound
  });
}

export const RATES = { put: "puts", used: "used", consumed: "consumed" };

export const counter = (task, name) => (point) => sum(of(point, task).map((part) => part[name]));

export function rates(points, task) {
  const x = times(points);
  const traces = Object.entries(RATES).map(([name, key], index) => ({
    type: "scatter", mode: "lines", x, y: rate(points, counter(task, key)), name, hovertemplate: "%{y:,.3~g} per second",
    line: { width: 2, color: nth(index), dash: name === "consumed" ? "dot" : "solid" },
  }));
  return { traces: points.length > 1 ? traces : [], hovermode: "x unified", xaxis: CLOCK };
}

export function memory(points, maxBytes) {
  const x = times(points);
  const series = { "groups": "num_bytes", "in memory": "memory_bytes", "on disk": "disk_bytes" };
  const traces = Object.entries(series).map(([name, key], index) => {
    const y = points.map((point) => point[key]);
    return { type: "scatter", mode: "lines", x, y, name, text: y.map(bytes), hovertemplate: "%{text}", line: { width: 2, color: nth(index), dash: index === 1 ? "dot" : "solid" } };
  }).filter((trace) => trace.y.some((value) => value !== null));
  const shapes = maxBytes ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: maxBytes, y1: maxBytes, line: { color: colour("amber"), width: 1, dash: "dash" } }] : [];
  return { traces, shapes, hovermode: "x unified", xaxis: CLOCK, yaxis: { tickformat: ".3~s", ticksuffix: "B" } };
}

// --- distributions

function compared(parts, words, title) {
  const keys = [...new Set(parts.flatMap(({ histogram }) => Object.keys(histogram).map(Number)))].sort((a, b) => a - b);
  const traces = parts.filter(({ histogram }) => sum(Object.values(histogram))).map(({ name, histogram, tone }) => {
    const total = sum(Object.values(histogram));
    const counts = keys.map((key) => histogram[key] ?? 0);
    return {
      type: "bar", x: keys.map(words.tick), y: counts.map((value) => value / total), name, marker: { color: colour(tone, 0.85) },
      customdata: keys.map((key, index) => [words.hover(key), count(counts[index])]),
      hovertemplate: `%{customdata[0]}<br>%{customdata[1]} (%{y:.1%})<extra>${name}</extra>`,
    };
  });
  return { traces, barmode: "group", yaxis: { tickformat: ".0%" }, xaxis: { title: { text: title }, ...words.axis } };
}

const steps = (what) => ({ tick: (key) => key, hover: (key) => `${what} ${key}`, axis: { tickformat: "d", nticks: 10 } });
const powers = (text, unit) => ({ tick: (key) => text(key), hover: (key) => `${text(key)} ${unit}`, axis: { type: "category", tickangle: 0, nticks: 8 } });
const lengthRange = (key) => (key < 2 ? `${key}` : `${count(key)}–${count(2 * key - 1)}`);

export const staleness = (stats) => compared([
  { name: "ready", histogram: stats.staleness.histogram, tone: "accent" },
  { name: "trained", histogram: stats.trained_staleness.oldest.histogram, tone: "second" },
], steps("staleness"), "training steps behind");

export const uses = (stats) => compared([
  { name: "ready", histogram: stats.uses.histogram, tone: "accent" },
  { name: "trained", histogram: stats.trained_uses.histogram, tone: "second" },
], steps("use"), "uses");

export const lengths = (stats) => compared([
  { name: "produced", histogram: stats.produced.lengths.histogram, tone: "accent" },
  { name: "trained", histogram: stats.trained.lengths.histogram, tone: "second" },
], powers(lengthRange, "tokens"), "response tokens");

export function priorities(stats) {
  const { histogram, zeros } = stats.priorities;
  const keys = Object.keys(histogram).map(Number).sort((a, b) => a - b);
  const x = keys.map((key) => decimal(2 ** key)), y = keys.map((key) => histogram[key]);
  const hover = keys.map((key) => `${decimal(2 ** key)} to ${decimal(2 ** (key + 1))}`);
  if (zeros) x.unshift("0"), y.unshift(zeros), hover.unshift("0");
  const traces = y.length ? [{ type: "bar", x, y, text: hover, textposition: "none", hovertemplate: "priority %{text}<br>%{y:,d} groups<extra></extra>", marker: { color: colour("accent", 0.85) } }] : [];
  return { traces, showlegend: false, xaxis: { type: "category", title: { text: "priority, at least" }, tickangle: 0, nticks: 8 }, yaxis: { tickformat: "~s" } };
}
