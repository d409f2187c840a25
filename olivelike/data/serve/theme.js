// Light, dark, or as the system has it; kept, and set before the page is first painted.

import { t } from "./language.js";

const KEY = "olivelike.theme";
const ORDER = ["auto", "light", "dark"];
const NAMES = { auto: t`Theme: as the system`, light: t`Theme: light`, dark: t`Theme: dark` };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

let theme = localStorage.getItem(KEY) ?? "auto";

function show() {
  document.documentElement.dataset.theme = theme;
  const switching = document.getElementById("theme");
  if (!switching) return;
  switching.textContent = SIGNS[theme];
  switching.title = NAMES[theme];
  switching.setAttribute("aria-label", NAMES[theme]);
}

if (!ORDER.includes(theme)) theme = "auto";
show();
document.addEventListener("DOMContentLoaded", () => {
  show();
  document.getElementById("theme").addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    localStorage.setItem(KEY, theme);
    show();
  });
});
