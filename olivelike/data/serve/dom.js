// Elements by id, and elements made of parts. Text from the server goes in as text alone: there is no innerHTML here.

import { t } from "./language.js";

export const $ = (id) => document.getElementById(id);

/** Make an element: `on` has listeners, `data` the dataset, names with a hyphen are attributes, others properties. */
export function make(tag, { on = {}, data = {}, ...rest } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(rest)) {
    if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  Object.assign(element.dataset, data);
  for (const [type, listener] of Object.entries(on)) element.addEventListener(type, listener);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Hear of events of the element with this id. */
export const on = (id, type, heard) => $(id).addEventListener(type, heard);

/** A button that submits nothing. */
export const button = (text, click, more = {}) => make("button", { type: "button", on: { click }, ...more }, text);

/** The value, or the bound that it is beyond. */
export const within = (value, least, most) => Math.min(Math.max(value, least), most);

/** A choice of a list. */
export const option = (value, words = value, more = {}) => make("option", { value, ...more }, words);

/** Give a list other choices; the one that is chosen stays, if it is still there. */
export function offer(select, options) {
  const { value } = select;
  select.replaceChildren(...options);
  if (options.some((one) => one.value === value)) select.value = value;
}

/** Tell who listens that an input, or the form, has other values, as typing does. */
export const tellInput = (element) => element.dispatchEvent(new Event("input", { bubbles: true }));

/** Tell that the form has other values, or bounds, by no typing; and hear of that. */
export const tellFilled = () => document.dispatchEvent(new Event("form-filled"));
export const onFilled = (work) => document.addEventListener("form-filled", work);

/** Kinds of files that are taken as pictures. */
export const PICTURES = ["image/png", "image/jpeg", "image/webp"];

/** Hear of pictures that are chosen at `id`, where the same ones may be chosen again. */
export function onFiles(id, take) {
  $(id).accept = PICTURES.join();
  on(id, "change", () => {
    const files = [...$(id).files];
    $(id).value = "";
    if (files.length) take(files);
  });
}

/** Mark the picture that is shown in the strip of all, and bring it into sight there. */
export function markInStrip({ id }) {
  const strip = $("strip");
  for (const item of strip.children) {
    const isShown = item.dataset.picture === id;
    item.firstChild.setAttribute("aria-current", String(isShown));
    item.firstChild.tabIndex = isShown ? 0 : -1;
    // The strip alone is moved: scrollIntoView would move the page too.
    if (isShown) strip.scrollLeft = item.offsetLeft - strip.offsetLeft - strip.clientWidth / 2 + item.clientWidth / 2;
  }
}

/** Let arrows go along the strip, which is one stop of the tab key. */
export function startStrip() {
  on("strip", "keydown", (event) => {
    const way = { ArrowLeft: "previousSibling", ArrowRight: "nextSibling" }[event.key];
    const next = way && event.target.closest("li")?.[way]?.querySelector("button");
    if (!next) return;
    event.preventDefault();
    next.click();
    next.focus();
  });
}

/** Return a function that each asking calls: its result tells whether none began since, as a late answer may not replace a newer one. */
export function newest() {
  let last = 0;
  return () => {
    const mine = (last += 1);
    return () => mine === last;
  };
}

/** What this browser kept, if it can be read. */
export function recall(key, otherwise, store = localStorage) {
  try {
    return JSON.parse(store.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Keep something in this browser, if it has room. */
export function remember(key, value, store = localStorage) {
  try {
    store.setItem(key, JSON.stringify(value));
  } catch {}
}

/** Show a picture of the gallery in an image. */
export function showIn(image, { url, prompt, width }) {
  Object.assign(image, { src: url, alt: prompt || t`Picture without a prompt` });
  image.classList.toggle("tiny", width <= 128);
}

/** Name the keys that Apple's keyboards have otherwise. */
export function nameKeys() {
  if (/Mac|iP/.test(navigator.platform)) for (const key of document.querySelectorAll("kbd, #keys dt")) key.textContent = key.textContent.replace("Ctrl", "⌘");
}

/** A number with so many digits behind the point or comma of the page's language, in a unit if one is named. */
export const inDigits = (value, digits, unit) => value.toLocaleString(document.documentElement.lang, { minimumFractionDigits: digits, maximumFractionDigits: digits, ...(unit && { style: "unit", unit }) }).replace(" ", "\u00a0");

/** Bytes in words. */
export const inMegabytes = (bytes) => (bytes < 1e9 ? inDigits(bytes / 1e6, bytes < 1e7 ? 1 : 0, "megabyte") : inDigits(bytes / 1e9, 1, "gigabyte"));

/** Call `work` once, when no call came for so long. */
export function settled(work, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
}

/** Call `work` at once, and then again at most every so many milliseconds. */
export function spaced(work, milliseconds) {
  let timer = 0;
  let wanted = false;
  const call = () => {
    wanted = false;
    timer = setTimeout(() => {
      timer = 0;
      if (wanted) call();
    }, milliseconds);
    work();
  };
  return () => {
    wanted = true;
    if (!timer) call();
  };
}

/** Write over a part of a text as typing would, so that Ctrl+Z takes it back; `from` and `to` are places in it. */
export function typeOver(input, text, from = 0, to = input.value.length) {
  if (input.value.slice(from, to) === text) return;
  input.focus({ preventScroll: true });
  input.setSelectionRange(from, to);
  // Setting the value would throw away what the browser could undo; it is set where typing would not do: out of sight, or too long.
  const fits = input.maxLength < 0 || input.value.length + text.length - (to - from) <= input.maxLength;
  const typed = fits && document.activeElement === input && (text ? document.execCommand("insertText", false, text) : document.execCommand("delete"));
  if (typed) return;
  input.setRangeText(text, from, to, "end");
  tellInput(input);
}

/** Seconds as people say them. */
export function inWords(seconds) {
  const whole = Math.max(1, Math.round(seconds));
  return whole < 90 ? `${whole} s` : `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
}

/** A number, or its text where JavaScript has no such whole number: a seed may have 64 bits. */
export const exact = (text) => (/^\d+$/.test(text) && !Number.isSafeInteger(Number(text)) ? text : Number(text));
