// The panels of words and numbers: warnings, tiles, limits, waiting calls, leases.

import { byId, bytes, count, decimal, make, rows, seconds, share } from "./dom.js";
import { counter, rate } from "./figures.js";

const reward = ({ score, scored }) => (scored ? score / scored : null);
const last = (values) => values.at(-1) ?? null;
const nothing = (text) => make("p", { class: "none" }, text);

export function warnings(stats) {
  const holder = byId("warnings");
  holder.hidden = !stats.warnings.length;
  holder.replaceChildren(...stats.warnings.map(({ task, found, change }) =>
    make("div", { class: "warning" }, make("b", {}, task), `${found}; ${change}`)));
}

export function tiles(stats, part, points, task) {
  const perSecond = (name) => (points.length > 1 ? last(rate(points, counter(task, name))) : null);
  const groups = Object.values(part.statuses).reduce((total, value) => total + value, 0);
  const untrained = Object.values(part.lost_tokens).reduce((total, value) => total + value, 0);
  const puts = Object.values(part.puts).reduce((total, value) => total + value, 0);
  const told = [
    ["groups", count(groups), `${count(part.statuses.completed)} ready`],
    ["tokens", count(part.num_tokens), groups ? `${count(Math.round(part.num_tokens / groups))} per group` : ""],
    ["training step", count(part.step), part.leased ? `${count(part.leased)} groups leased` : ""],
    ["put per second", decimal(perSecond("puts")), `${count(puts)} in total`],
    ["used per second", decimal(perSecond("used")), `${count(part.trained.groups)} in total`],
    ["reward, trained", decimal(reward(part.trained)), part.produced.scored ? `${decimal(reward(part.produced))} produced` : ""],
    ["untrained tokens", share(untrained, part.put[1]), "of those put"],
    ["size", bytes(part.num_bytes), task ? `of ${bytes(stats.num_bytes)} in all tasks` : stats.max_bytes ? `limit ${bytes(stats.max_bytes)}` : "no limit"],
  ];
  byId("tiles").replaceChildren(...told.map(([name, value, about]) => make("div", { class: "tile" },
    make("div", { class: "name" }, name), make("div", { class: "value" }, value), make("div", { class: "about" }, about))));
}

export function room(stats) {
  const told = [`${bytes(stats.num_bytes)} of groups${stats.max_bytes ? `, limit ${bytes(stats.max_bytes)}` : ""}`, `${bytes(stats.memory_bytes)} in memory`];
  told.push(stats.disk ? `${bytes(stats.disk.file_bytes + stats.disk.log_bytes)} on disk` : "nothing on disk");
  byId("room").textContent = `${told.join("; ")}.`;
}

export function limits(parts) {
  byId("limits").replaceChildren(...parts.length ? parts.map(([name, { limits: found }]) => limit(name, found)) : [nothing("No task yet.")]);
}

function limit(name, { limiter, capacity, occupied, inserts_left: puts, samples_left: samples, starts_left: starts }) {
  const most = puts === null ? capacity : occupied + puts;
  const fill = make("i", { class: puts === null ? "free" : puts === 0 ? "full" : null });
  fill.style.width = `${most ? (100 * occupied) / most : puts === 0 ? 100 : 0}%`;
  const before = puts === null ? "puts do not wait" : puts === 0 ? "full: puts wait" : `${count(puts)} more before puts wait`;
  const begin = starts === null ? "" : starts === 0 ? "; producers cannot start" : `; ${count(starts)} can start`;
  return make("div", { class: "limit" },
    make("div", { class: "head" }, make("b", {}, name), make("span", { class: "muted" }, `${count(occupied)}${capacity ? ` of ${count(capacity)}` : ""}`)),
    make("div", { class: "track" }, fill),
    make("div", { class: "foot" }, make("span", {}, before + begin), make("span", {}, samples ? `${count(samples)} can be delivered` : "nothing to deliver")),
    make("div", { class: "foot mono" }, limiter));
}

export function waiting(parts) {
  const told = [];
  for (const [task, { waiting: now, waits }] of parts) {
    for (const verb of Object.keys(waits)) {
      const held = now[verb] ?? { count: 0, longest_s: 0 }, { count: times, total_s, max_s } = waits[verb];
      if (!held.count && !times) continue;
      told.push([task, verb, count(held.count), held.count ? seconds(held.longest_s) : "–", count(times), times ? seconds(total_s / times) : "–", times ? seconds(max_s) : "–"]);
    }
  }
  byId("waiting").replaceChildren(told.length
    ? make("div", { class: "wide" }, rows(["task", "call", "now #", "for #", "waited #", "mean #", "longest #"], told))
    : nothing("No call waits, and none has waited."));
}

export function leases({ open_leases: open, leases: total, reservations, out }, task) {
  const told = open.filter((lease) => !task || lease.tasks.includes(task))
    .map((lease) => [`${lease.id}`, lease.tasks.join(", "), count(lease.groups), seconds(lease.held_s), lease.ends_in_s === null ? "–" : seconds(Math.max(0, lease.ends_in_s))]);
  const more = total > open.length ? ` The oldest ${open.length} of ${count(total)} leases.` : "";
  byId("leases").replaceChildren(
    told.length ? make("div", { class: "wide" }, rows(["lease", "tasks", "groups #", "held #", "ends in #"], told)) : nothing("No lease is open."),
    nothing(`${count(reservations)} reservations, ${count(out)} groups out with producers.${more}`));
}
