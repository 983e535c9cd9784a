// Elements and words. Whatever comes from the buffer becomes text here, never markup.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A small table: headings that end in " #" are of numbers. */
export function rows(headings, cells) {
  const isNumber = headings.map((heading) => heading.endsWith(" #"));
  const kind = (index) => ({ class: isNumber[index] ? "n" : null });
  return make("table", { class: "rows" },
    make("thead", {}, make("tr", {}, ...headings.map((heading, index) => make("th", kind(index), heading.replace(" #", ""))))),
    make("tbody", {}, ...cells.map((row) => make("tr", {}, ...row.map((cell, index) => make("td", kind(index), cell))))));
}

/** Buttons of which one is pressed; `chosen` is told which. */
export function toggle(holder, names, chosen) {
  const buttons = names.map((name) => make("button", {
    type: "button",
    "aria-pressed": String(name === names[0]),
    onclick: () => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.textContent === name));
      chosen(name);
    },
  }, name));
  holder.replaceChildren(...buttons);
}

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (value) => (value === null || value === undefined ? "–" : Math.abs(value) < 100000 ? whole.format(value) : compact.format(value));

export function decimal(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0 || Number.isInteger(value)) return count(value);
  return Math.abs(value) >= 100 ? count(Math.round(value)) : Number(value.toPrecision(3)).toString();
}

export const share = (part, all) => (all ? `${(100 * part / all).toFixed(part / all < 0.1 ? 1 : 0)} %` : "–");

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  for (; value >= 1000 && unit < 5; unit++) value /= 1000;
  return `${unit ? value.toPrecision(3) : value} ${["B", "KB", "MB", "GB", "TB", "PB"][unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}
