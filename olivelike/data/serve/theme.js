// Light, dark, or as the system has it; kept, and set before the page is first painted.

import { t } from "./language.js";

const KEY = "olivelike.theme";
const ORDER = ["auto", "light", "dark"];
const NAMES = { auto: t`Theme: as the system`, light: t`Theme: light`, dark: t`Theme: dark` };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

let chosen = localStorage.getItem(KEY) ?? "auto";

export const theme = () => chosen;

export function setTheme(name) {
  chosen = name;
  localStorage.setItem(KEY, name);
  show();
}

function show() {
  document.documentElement.dataset.theme = chosen;
  const switching = document.getElementById("theme");
  if (!switching) return;
  switching.textContent = SIGNS[chosen];
  switching.title = NAMES[chosen];
  switching.setAttribute("aria-label", NAMES[chosen]);
}

if (!ORDER.includes(chosen)) chosen = "auto";
show();
document.addEventListener("DOMContentLoaded", () => {
  show();
  document.getElementById("theme").addEventListener("click", () => setTheme(ORDER[(ORDER.indexOf(chosen) + 1) % ORDER.length]));
});
