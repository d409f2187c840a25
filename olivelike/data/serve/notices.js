// What the page says: politely to screen readers, and as notices.

import { $, button, make } from "./dom.js";
import { t } from "./language.js";

/** Say something to screen readers when they have time. */
export function announce(text) {
  $("announce").textContent = "";
  // The same text twice is said twice only if the region was empty in between.
  setTimeout(() => ($("announce").textContent = text), 50);
}

const TITLE = document.title;

/** Say what is being painted, and how far it is, below the button and in the title of the tab. */
export function say(text, share = null) {
  $("status").textContent = text;
  $("step-bar").value = share ?? 0;
  $("step-bar").classList.toggle("idle", share === null);
  document.title = share ? `${Math.round(share * 100)} % · ${TITLE}` : TITLE;
}

const SECONDS = 6;
const SECONDS_TO_CHOOSE = 20;

/**
 * Show a notice, with actions, `[text, work]` each; it goes after a while, unless it `stays`, or a pointer or the focus is on it.
 *
 * It takes the place of the last one, or stands below it for a while where that has actions: what can be undone can still be undone.
 */
export function notice(text, actions = [], { stays = false } = {}) {
  const shown = make("li", { className: "notice", data: actions.length ? { acts: text } : {} }, make("p", { className: text.length > 90 ? "long" : "" }, text));
  const close = () => shown.remove();
  for (const [label, work] of actions) {
    shown.append(button(label, () => {
      close();
      work();
    }));
  }
  shown.append(button("×", close, { "aria-label": t`Close this notice`, className: "quiet" }));
  const before = [...$("notices").children].filter(({ dataset: { acts } }) => acts && acts !== text).slice(-1);
  $("notices").replaceChildren(...before, shown);
  raise();
  announce(text);
  for (const one of before) goAfter(one, SECONDS);
  // Who had the time to choose needs it no more beside another.
  if (stays) setTimeout(() => delete shown.dataset.acts, 1000 * SECONDS_TO_CHOOSE);
  else goAfter(shown, actions.length ? SECONDS_TO_CHOOSE : SECONDS);
}

function goAfter(shown, seconds) {
  setTimeout(() => (shown.matches(":hover, :focus-within") ? goAfter(shown, SECONDS) : shown.remove()), 1000 * seconds);
}

let home = null;

/** Bring notices into the open dialog in front, which covers the rest; each time one closes, into what is in front then. */
function raise() {
  home ??= $("notices").parentElement;
  const front = [...document.querySelectorAll("dialog[open]")].at(-1) ?? home;
  if ($("notices").parentElement !== front) front.append($("notices"));
}

addEventListener("close", raise, true);

/** Show what went wrong where it belongs; an empty text takes it away. */
export function problem(element, error) {
  const text = error?.message ?? error ?? "";
  element.textContent = text;
  // What the server says is English in each language of the page.
  if (error?.status) element.lang = "en";
  else element.removeAttribute("lang");
  element.dataset.code = error?.code ?? "";
  element.hidden = !text;
}

/** What the server says, as a sentence. */
export const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

/** Return what shows an error at the element with this id, for `catch`. */
export const shownAt = (id) => (error) => problem($(id), error);

/** Ask before something that can't be taken back. */
export function confirmed(question, verb) {
  const dialog = $("confirm");
  $("confirm-question").textContent = question;
  $("confirm-yes").textContent = verb;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
