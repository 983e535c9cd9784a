// One group: what is known of it, its prompt, and each response with its tokens coloured by version and mask.

import { byId, count, decimal, make } from "./dom.js";

const FACTS = [
  ["task", "task_name"], ["status", "status"], ["group id", "group_id"], ["staleness", "staleness", count], ["oldest version", "version", count],
  ["tokens", "num_tokens", count], ["uses", "times_sampled", count], ["deliveries", "deliveries", count], ["attempts", "attempts", count],
  ["priority", "priority", decimal], ["reward", "reward_mean", decimal], ["reward std", "reward_std", decimal],
];
const SHOWN = 2000, ALL = 1e9; // tokens of a response: the first ones, unless somebody wants all

export async function openGroup(known, tokens = SHOWN) {
  const dialog = byId("group"), { uid } = known;
  const answer = await fetch(`groups/${uid}?tokens=${tokens}`).then((found) => found.json(), () => ({ error: "The server does not answer." }));
  dialog.replaceChildren(make("div", { class: "sheet" },
    make("header", {}, make("h2", {}, `Group ${uid}`), make("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "✕ close")),
    make("div", {}, ...(answer.error ? [make("p", { class: "wrong" }, answer.error)] : body({ ...answer, row: answer.row ?? known }, tokens)))));
  if (!dialog.open) dialog.showModal();
}

byId("group").addEventListener("click", ({ target }) => {
  if (target === byId("group")) target.close(); // beside the sheet
});

function body({ row, rollouts }, tokens) {
  const versions = [...new Set(rollouts.flatMap(({ runs }) => runs.map((run) => run.version)))].filter((version) => version !== null).sort((a, b) => a - b);
  const tint = tints(versions);
  const isCut = rollouts.some((rollout) => shownTokens(rollout) < rollout.num_response_tokens);
  return [
    make("dl", { class: "facts" }, ...FACTS.filter(([, field]) => row?.[field] !== null && row?.[field] !== undefined).map(([name, field, words]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, words ? words(row[field]) : String(row[field]))))),
    ...prompt(rollouts[0]),
    legend(versions, tint, rollouts),
    ...rollouts.map((rollout, index) => response(rollout, index, tint)),
    ...(isCut && tokens < ALL ? [make("p", {}, make("button", { type: "button", onclick: () => openGroup(row, ALL) }, "Show all tokens"))] : []),
  ];
}

const shownTokens = ({ runs }) => runs.reduce((total, run) => total + run.num_tokens, 0);

function prompt({ message, num_prompt_tokens: total }) {
  return message ? [make("h3", {}, total ? `Prompt · ${count(total)} tokens` : "Prompt"), make("pre", { class: "text", "data-part": "prompt" }, message)] : [];
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
  const hasMask = rollouts.some(({ runs }) => runs.some((run) => !run.is_trained));
  return make("div", { class: "legend" }, entries.length ? "policy version" : null, ...entries,
    hasMask ? make("span", {}, make("span", { class: "masked" }, "struck"), "masked out, not trained") : null);
}

function tinted(tag, attributes, colour, ...children) {
  const node = make(tag, attributes, ...children);
  node.style.background = colour;
  return node;
}

function response(rollout, index, tint) {
  const { runs, num_response_tokens: total, reward } = rollout, missing = total - shownTokens(rollout);
  const about = (run) => ({
    class: run.is_trained ? "run" : "run masked",
    title: `version ${run.version ?? "unknown"}, ${count(run.num_tokens)} tokens${run.is_trained ? "" : ", masked out"}`,
  });
  const ribbon = make("div", { class: "ribbon" }, ...runs.map((run) => {
    const part = tinted("i", about(run), tint(run.version, 0.75));
    part.style.flexGrow = run.num_tokens;
    return part;
  }));
  const tokens = make("pre", { class: "text tokens", "data-part": "tokens" },
    ...runs.map((run) => tinted("span", about(run), tint(run.version, 0.28), run.text)), missing ? `… ${count(missing)} more` : null);
  return make("section", { class: "response" },
    make("header", {}, make("b", {}, `Response ${index}`), make("span", { class: "status", "data-is": rollout.status }, rollout.status),
      make("span", {}, `reward ${typeof reward === "object" && reward ? JSON.stringify(reward) : decimal(reward)}`), make("span", { class: "muted" }, `${count(total)} tokens`),
      rollout.finish_reason ? make("span", { class: "muted" }, rollout.finish_reason) : null),
    rollout.error_msg ? make("p", { class: "wrong lines" }, rollout.error_msg) : null,
    rollout.response ? make("pre", { class: "text", "data-part": "response" }, rollout.response) : null,
    runs.length ? ribbon : null, runs.length ? tokens : null);
}
