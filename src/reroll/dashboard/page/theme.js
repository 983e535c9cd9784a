// Light or dark: the system's choice, until somebody presses the button. Loaded first, so that nothing flashes.
const kept = localStorage.getItem("reroll-theme");
if (kept) document.documentElement.dataset.theme = kept;

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

document.addEventListener("DOMContentLoaded", () => {
  const changed = () => document.dispatchEvent(new Event("theme"));
  document.getElementById("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("reroll-theme", document.documentElement.dataset.theme);
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
});
