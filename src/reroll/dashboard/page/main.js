// The page: each frame goes to every part; the task that is chosen narrows them all.

import { byId, make, toggle } from "./dom.js";
import { show } from "./charts.js";
import { drawFlow } from "./flow.js";
import * as figures from "./figures.js";
import * as panels from "./panels.js";
import { listen } from "./stream.js";
import { GroupTable } from "./table.js";

const chosen = { task: "", occupancy: "status", unit: "tokens" };
let newest = null;
const table = new GroupTable();

function tell() {
  if (!newest) return;
  const { frame: { stats, ledger }, points } = newest;
  const { task } = chosen;
  const part = stats.tasks[task] ?? stats.total;
  const parts = Object.entries(stats.tasks).filter(([name]) => !task || name === task);
  panels.warnings(stats);
  panels.tiles(stats, part, points, task);
  panels.room(stats);
  panels.limits(parts);
  panels.waiting(parts);
  panels.leases(stats, task);
  show("occupancy", () => figures.occupancy(points, task, chosen.occupancy), "Nothing is here yet.");
  show("rates", () => figures.rates(points, task), "Rates need two samples.");
  drawFlow(byId("ledger"), ledger, task, chosen.unit);
  show("staleness", () => figures.staleness(part), "Nothing is ready or trained yet.");
  show("uses", () => figures.uses(part), "Nothing is ready or trained yet.");
  show("priorities", () => figures.priorities(part), "Nothing is ready yet.");
  show("lengths", () => figures.lengths(part), "Nothing was produced yet.");
  show("memory", () => figures.memory(points, stats.max_bytes), "Nothing is known yet.");
}

function learnTasks(names) {
  const select = byId("task");
  for (const name of names) {
    if (![...select.options].some((option) => option.value === name)) select.append(make("option", { value: name }, name));
  }
}

toggle(byId("occupancy-by"), ["status", "task"], (by) => { chosen.occupancy = by; tell(); });
toggle(byId("ledger-unit"), ["tokens", "groups"], (unit) => { chosen.unit = unit; tell(); });
byId("task").addEventListener("change", ({ target }) => {
  chosen.task = target.value;
  tell();
  table.narrow(target.value);
});

addEventListener("resize", tell);

listen({
  onFrame(frame, points) {
    newest = { frame, points };
    byId("source").textContent = frame.source;
    document.title = `reroll · ${frame.source}`;
    learnTasks(Object.keys(frame.stats.tasks));
    tell();
  },
  onLife(is, text) {
    byId("life").dataset.is = is;
    byId("life-text").textContent = text;
  },
});
table.load();
