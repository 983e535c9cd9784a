// The table of groups: asked page by page, when somebody asks, so that looking costs the buffer little.

import { byId, count, decimal, make } from "./dom.js";
import { openGroup } from "./group.js";

const PAGE = 25;
const EXAMPLES = {
  everything: {},
  "rewards that differ": { reward_std: { $gt: 0.2 } },
  "never solved": { reward_mean: { $lte: 0 } },
  stale: { staleness: { $gte: 2 } },
  replayed: { times_sampled: { $gt: 1 } },
  "rolled again": { attempts: { $gt: 1 } },
  failed: { status: "failed" },
};
const COLUMNS = [
  ["uid", "group", true, count], ["task_name", "task"], ["status", "status"], ["staleness", "staleness", true, count],
  ["version", "version", true, count], ["num_rollouts", "rollouts", true, count], ["num_tokens", "tokens", true, count],
  ["times_sampled", "uses", true, count], ["priority", "priority", true, decimal], ["reward_mean", "reward", true, decimal],
  ["reward_std", "± std", true, decimal], ["attempts", "attempts", true, count], ["group_id", "group id"], ["tags", "tags"],
];

const OFTEN_EMPTY = ["group_id", "tags"];

export class GroupTable {
  #where = "";
  #task = "";
  #order = "-uid";
  #offset = 0;
  #asked = 0;

  constructor() {
    byId("filter").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#filter(byId("where").value.trim());
    });
    byId("examples").replaceChildren(...Object.entries(EXAMPLES).map(([name, query]) => make("button", {
      type: "button",
      onclick: () => {
        byId("where").value = Object.keys(query).length ? JSON.stringify(query) : "";
        this.#filter(byId("where").value);
      },
    }, name)));
    byId("earlier").addEventListener("click", () => this.#turn(-PAGE));
    byId("later").addEventListener("click", () => this.#turn(PAGE));
    byId("again").addEventListener("click", () => this.load());
  }

  narrow(task) {
    this.#task = task;
    this.#offset = 0;
    this.load();
  }

  #filter(where) {
    this.#where = where;
    this.#offset = 0;
    this.load();
  }

  #turn(by) {
    this.#offset = Math.max(0, this.#offset + by);
    this.load();
  }

  #sort(field) {
    this.#order = this.#order === `-${field}` ? field : `-${field}`;
    this.#offset = 0;
    this.load();
  }

  async load() {
    const asked = ++this.#asked;
    byId("table").setAttribute("aria-busy", "true");
    const wanted = new URLSearchParams({ where: this.#where, task: this.#task, order_by: this.#order, limit: PAGE, offset: this.#offset });
    const answer = await fetch(`groups?${wanted}`).then(async (found) => ({ ok: found.ok, ...await found.json() }), () => ({ ok: false, error: "The server does not answer." }));
    if (asked !== this.#asked) return; // somebody asked for something else meanwhile
    byId("table").setAttribute("aria-busy", "false");
    byId("wrong").hidden = answer.ok;
    if (!answer.ok) byId("wrong").textContent = answer.error;
    else this.#show(answer);
  }

  #show({ rows, total }) {
    const columns = COLUMNS.filter(([field]) => !OFTEN_EMPTY.includes(field) || rows.some((row) => cell(field, row[field])));
    const from = this.#offset, to = from + rows.length;
    byId("matches").textContent = `${count(total)} ${this.#where ? "match" : "here"}`;
    byId("range").textContent = `${rows.length ? `${count(from + 1)}–${count(to)} of ${count(total)}` : "none"}, at ${new Date().toLocaleTimeString("en-GB")}`;
    byId("earlier").disabled = from === 0;
    byId("later").disabled = to >= total;
    byId("table").querySelector("thead").replaceChildren(make("tr", {}, ...columns.map((column) => this.#heading(...column))));
    byId("table").querySelector("tbody").replaceChildren(...rows.map((row) => line(row, columns)));
  }

  #heading(field, name, isNumber) {
    const order = this.#order.replace("-", "") === field ? (this.#order.startsWith("-") ? "descending" : "ascending") : null;
    const cell = make("th", { class: isNumber ? "n" : null, "aria-sort": order });
    const arrow = order ? (order === "descending" ? " ↓" : " ↑") : "";
    cell.append(field === "tags" ? make("span", { class: "muted" }, name) : make("button", { type: "button", onclick: () => this.#sort(field) }, name + arrow));
    return cell;
  }
}

function line(row, columns) {
  const open = () => openGroup(row);
  return make("tr", { tabindex: "0", "data-uid": row.uid, onclick: open, onkeydown: ({ key }) => key === "Enter" && open() },
    ...columns.map(([field, , isNumber, words]) => make("td", { class: isNumber ? "n" : null }, cell(field, row[field], words))));
}

function cell(field, value, words) {
  if (field === "status") return make("span", { class: "status", "data-is": value }, value);
  if (words) return words(value);
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? (Object.keys(value).length ? JSON.stringify(value) : "") : String(value);
}
