// One group: what is known of it, its prompt, and each response with its tokens coloured by version and mask.

import { byId, count, decimal, make } from "./dom.js";

const FACTS = [
  ["task", "task_name"], ["status", "status"], ["group id", "group_id"], ["staleness", "staleness", count], ["oldest version", "version", count],
  ["tokens", "num_tokens", count], ["uses", "times_sampled", count], ["deliveries", "deliveries", count], ["attempts", "attempts", count],
  ["priority", "priority", decimal], ["reward", "reward_mean", decimal], ["reward std", "reward_std", decimal],
];
const SHOWN = 2000, ALL = 1e9; // tokens of a response: the first ones, unless somebody wants all

export async function openGroup(uid, tokens = SHOWN) {
  const dialog = byId("group");
  const answer = await fetch(`groups/${uid}?tokens=${tokens}`).then((found) => found.json(), () => ({ error: "The server does not answer." }));
  dialog.replaceChildren(make("div", { class: "sheet" },
    make("header", {}, make("h2", {}, `Group ${uid}`), make("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "✕ close")),
    make("div", {}, ...(answer.error ? [make("p", { class: "wrong" }, answer.error)] : body(answer, tokens)))));
  if (!dialog.open) dialog.showModal();
}

byId("group").addEventListener("click", ({ target }) => {
  if (target === byId("group")) target.close(); // beside the sheet
});

function body({ row, rollouts }, tokens) {
  const told = rollouts.map((rollout) => ({ ...rollout, runs: runsOf(rollout) }));
  const versions = [...new Set(told.flatMap(({ runs }) => runs.map((run) => run.version)))].filter((version) => version !== null).sort((a, b) => a - b);
  const tint = tints(versions);
  const isCut = rollouts.some((rollout) => rollout.response_ids.length < rollout.num_response_tokens || rollout.prompt_ids.length < rollout.num_prompt_tokens);
  return [
    make("dl", { class: "facts" }, ...FACTS.filter(([, field]) => row?.[field] !== null && row?.[field] !== undefined).map(([name, field, words]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, words ? words(row[field]) : String(row[field]))))),
    ...prompt(rollouts[0]),
    legend(versions, tint, told),
    ...told.map((rollout, index) => response(rollout, index, tint)),
    ...(isCut && tokens < ALL ? [make("p", {}, make("button", { type: "button", onclick: () => openGroup(row.uid, ALL) }, "Show all tokens"))] : []),
  ];
}

/** Runs of response tokens with one version and one mask. */
function runsOf({ response_ids: ids, versions, mask }) {
  const runs = [];
  const left = (parts) => parts.map(([value, length]) => ({ value, length }));
  const made = left(versions), masks = left(mask);
  for (let start = 0; start < ids.length;) {
    const length = Math.min(made[0]?.length ?? Infinity, masks[0]?.length ?? Infinity, ids.length - start);
    runs.push({ version: made[0]?.value ?? null, isMasked: masks[0]?.value === 0, ids: ids.slice(start, start + length) });
    start += length;
    for (const parts of [made, masks]) {
      if (parts.length && !(parts[0].length -= length)) parts.shift();
    }
  }
  return runs;
}

function prompt({ message, prompt_ids: ids, num_prompt_tokens: total }) {
  if (!message && !ids.length) return [];
  const text = message ?? ids.join(" ") + (ids.length < total ? ` … ${count(total - ids.length)} more` : "");
  return [make("h3", {}, total ? `Prompt · ${count(total)} tokens` : "Prompt"), make("pre", { class: "text", "data-part": "prompt" }, text)];
}

/** From old, warm, to new, cool. */
function tints(versions) {
  const hue = (index) => (versions.length > 1 ? 38 + (150 * index) / (versions.length - 1) : 188);
  const known = new Map(versions.map((version, index) => [version, hue(index)]));
  return (version, opacity) => (known.has(version) ? `hsl(${known.get(version)} 50% 50% / ${opacity})` : `hsl(0 0% 50% / ${opacity / 2})`);
}

function legend(versions, tint, rollouts) {
  const few = versions.length > 12 ? [...versions.slice(0, 6), ...versions.slice(-6)] : versions;
  const entries = few.map((version) => make("span", {}, tinted("i", {}, tint(version, 0.7)), String(version)));
  const hasMask = rollouts.some(({ runs }) => runs.some((run) => run.isMasked));
  return make("div", { class: "legend" }, entries.length ? "policy version" : null, ...entries,
    hasMask ? make("span", {}, make("span", { class: "masked" }, "struck"), "masked out, not trained") : null);
}

function tinted(tag, attributes, colour, ...children) {
  const node = make(tag, attributes, ...children);
  node.style.background = colour;
  return node;
}

function response({ runs, ...rollout }, index, tint) {
  const total = rollout.num_response_tokens, missing = total - rollout.response_ids.length;
  const about = (run) => ({ class: run.isMasked ? "run masked" : "run", title: `version ${run.version ?? "unknown"}, ${count(run.ids.length)} tokens${run.isMasked ? ", masked out" : ""}` });
  const ribbon = make("div", { class: "ribbon" }, ...runs.map((run) => {
    const part = tinted("i", about(run), tint(run.version, 0.75));
    part.style.flexGrow = run.ids.length;
    return part;
  }));
  const tokens = make("pre", { class: "text tokens", "data-part": "tokens" },
    ...runs.map((run) => tinted("span", about(run), tint(run.version, 0.28), `${run.ids.join(" ")} `)), missing ? `… ${count(missing)} more` : null);
  const reward = rollout.reward === null ? "–" : typeof rollout.reward === "number" ? decimal(rollout.reward) : JSON.stringify(rollout.reward);
  return make("section", { class: "response" },
    make("header", {}, make("b", {}, `Response ${index + 1}`), make("span", { class: "status", "data-is": rollout.status }, rollout.status),
      make("span", {}, `reward ${reward}`), make("span", { class: "muted" }, `${count(total)} tokens`),
      rollout.finish_reason ? make("span", { class: "muted" }, rollout.finish_reason) : null),
    rollout.error_msg ? make("p", { class: "wrong" }, rollout.error_msg) : null,
    rollout.response ? make("pre", { class: "text", "data-part": "response" }, rollout.response) : null,
    runs.length ? ribbon : null, runs.length ? tokens : null);
}
