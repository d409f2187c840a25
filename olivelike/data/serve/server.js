// What the page asks of the server, and the streams of events that it listens to.

import { $ } from "./dom.js";
import { t } from "./language.js";
import { announce, say } from "./notices.js";

// An address that has a name and a key in it can't be asked; the browser knows both at the plain one, too.
try {
  new Request("/");
} catch {
  location.replace(location.origin + location.pathname + location.search + location.hash);
}

/** What the server refused, in its own words. */
class ServerError extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

const WORDS_AND_NUMBERS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Read JSON; whole numbers that JavaScript has none for, as seeds of 64 bits may be, become texts. */
function readJson(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text.replace(WORDS_AND_NUMBERS, (one) => (/^-?\d{16,}$/.test(one) && !Number.isSafeInteger(Number(one)) ? `"${one}"` : one)));
}

/** Answers that are on their way, by path. */
const ahead = new Map();

/** Ask for several paths together; `ask` has the answer of each as it comes, until what is returned is called. */
export function askAhead(...paths) {
  for (const path of paths) {
    ahead.set(path, fetch(path));
    ahead.get(path).catch(() => {}); // Whoever asks hears of it.
  }
  return () => paths.forEach((path) => ahead.delete(path));
}

/** Ask for `path`, and return the answer's JSON. `json` or `body` (a Blob) is what is sent. */
export async function ask(path, { method = "GET", json, body, signal } = {}) {
  const headers = json === undefined ? {} : { "Content-Type": "application/json" };
  if (body?.type) headers["Content-Type"] = body.type;
  let answer;
  try {
    const sent = method === "GET" && ahead.get(path);
    if (sent) ahead.delete(path);
    answer = await (sent || fetch(path, { method, headers, signal, body: json === undefined ? body : JSON.stringify(json) }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lost();
    throw new ServerError(0, "unreachable", t`The server does not answer. It may have been stopped; start it again.`);
  }
  found();
  if (answer.ok) return answer.status === 204 ? null : readJson(await answer.text());
  const { error = {} } = await answer.json().catch(() => ({}));
  throw new ServerError(answer.status, error.code ?? "error", error.message ?? t`The server answered with status ${answer.status}.`);
}

/** The file of a picture of the gallery. */
export async function fileOf({ url }) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(t`This picture is gone; the gallery no longer has it.`);
  return answer.blob();
}

export const path = (...parts) => `/api/${parts.map((part) => encodeURIComponent(part)).join("/")}`;

/** A path with a query, of the values that are not empty. */
export function query(start, values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${start}?${new URLSearchParams(given)}` : start;
}

const PAUSE = 2000;

let connected = null;
const returned = new Set();

/** Call `work` each time the connection is back after it was lost. */
export const onReturn = (work) => returned.add(work);

function lost() {
  if (connected === false) return;
  connected = false;
  $("connection").hidden = false;
  $("connection").textContent = t`Connection lost. Trying again…`;
  announce($("connection").textContent);
  // Nobody knows how far the job is now; the next event of it says so.
  const bar = $("step-bar");
  if (!bar.classList.contains("idle")) say($("connection").textContent, bar.value);
  setTimeout(probe, PAUSE);
}

/** Ask until there is an answer: a stream that outlived the gap does not tell of its end. */
function probe() {
  if (!connected) ask("/api/jobs?limit=1").catch(() => setTimeout(probe, PAUSE));
}

function found() {
  const before = connected;
  connected = true;
  $("connection").hidden = true;
  $("connection").textContent = "";
  if (before !== false) return;
  announce(t`Connected again.`);
  // Pictures that could not be had meanwhile.
  for (const image of document.images) if (image.complete && !image.naturalWidth && image.src) image.src = image.src;
  for (const work of returned) work();
}

const TYPES = ["state", "queued", "queue", "opening", "started", "step", "picture", "sheet", "done", "failed", "cancelled", "run"];

/**
 * Listen to a stream of events; `heard(type, data)` is called for each. It is opened again when it breaks.
 *
 * Returns what closes it. `telling` streams say whether there is a connection.
 */
export function listen(address, heard, { telling = false, gone = () => {} } = {}) {
  let source = null;
  let timer = 0;
  let wait = 500;
  const open = () => {
    source = new EventSource(address);
    source.onopen = () => {
      wait = 500;
      if (telling) found();
    };
    source.onerror = () => {
      if (telling) lost();
      source.close();
      // Our own pause, not the browser's: that gives up for good on an answer such as 503.
      timer = setTimeout(open, wait);
      wait = Math.min(wait * 2, 8000);
      gone();
    };
    for (const type of TYPES) {
      source.addEventListener(type, (event) => heard(type, readJson(event.data)));
    }
  };
  open();
  const online = () => {
    if (source.readyState !== EventSource.CLOSED) return;
    clearTimeout(timer);
    open();
  };
  addEventListener("online", online);
  return () => {
    removeEventListener("online", online);
    clearTimeout(timer);
    source.close();
  };
}
