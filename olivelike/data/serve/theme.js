// Light, dark, or as the system has it; kept, and set by early_theme.js the next time.

import { $, on } from "./dom.js";
import { t } from "./language.js";

const KEY = "olivelike.theme";
/** The first click is seen. */
const ORDER = matchMedia("(prefers-color-scheme: dark)").matches ? ["auto", "light", "dark"] : ["auto", "dark", "light"];
const NAMES = { auto: t`Theme: as the system`, light: t`Theme: light`, dark: t`Theme: dark` };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

let chosen = localStorage.getItem(KEY) ?? "auto";
if (!ORDER.includes(chosen)) chosen = "auto";

export const theme = () => chosen;

export function setTheme(name) {
  chosen = name;
  localStorage.setItem(KEY, name);
  show();
}

function show() {
  document.documentElement.dataset.theme = chosen;
  $("theme").textContent = SIGNS[chosen];
  $("theme").title = NAMES[chosen];
  $("theme").setAttribute("aria-label", NAMES[chosen]);
}

show();
on("theme", "click", () => setTheme(ORDER[(ORDER.indexOf(chosen) + 1) % ORDER.length]));
